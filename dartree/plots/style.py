"""One look for all figures: colours, markers and dashes per method and outcome."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import matplotlib

from dartree.methods import TABLE
from dartree.records import ACCEPTED, UNREACHED, WALKED_PAST


@dataclass(frozen=True)
class Look:
    """How one method or outcome is drawn: a colour, and other channels that say the same."""

    color: str
    marker: str = "o"
    dash: str | tuple = "-"
    hatch: str = ""

    @property
    def line(self) -> dict[str, Any]:
        """Options of ``Axes.plot``."""
        return {"color": self.color, "marker": self.marker, "ls": self.dash}

    @property
    def bar(self) -> dict[str, Any]:
        """Options of ``Axes.bar`` and ``Axes.barh``."""
        return {"fc": tint(self.color, 0.55), "ec": self.color, "hatch": self.hatch}


# Okabe and Ito's colours as in seaborn's "colorblind": fixed per method across all figures. Plain
# decoding is grey, methods on the marginals are blue, Domino's orange, the DARTree family green
# and vermilion.
METHOD_LOOKS: dict[str, Look] = {
    "ar": Look("#949494", "x", (0, (1, 1)), "...."),
    "dflash": Look("#56b4e9", "v", (0, (4, 1)), "////"),
    "domino": Look("#de8f05", "^", (0, (4, 1)), "\\\\\\\\"),
    "ddtree": Look("#0173b2", "s", "--", ""),
    "domino-ddtree": Look("#ca9161", "D", "--", "xxxx"),
    "heap": Look("#cc78bc", "P", "-.", "++++"),
    "dartree-fixed": Look("#029e73", "X", "-.", "----"),
    "dartree": Look("#d55e00", "o", "-", ""),
}

# Methods that a reader added, in the order of adding; after the last one again from the first.
ADDED_LOOKS: tuple[Look, ...] = (
    Look("#222222", "*", (0, (6, 2)), "**"),
    Look("#7a1fa2", "p", (0, (5, 1, 1, 1)), "||"),
    Look("#8b0000", "h", (0, (2, 1)), "//.."),
    Look("#00555a", "<", (0, (8, 2, 2, 2)), "oo--"),
)
_added: list[str] = []  # names that have one of these in this session

# One-token baselines are no methods, but stand beside them in figures of time.
BASELINE_LOOKS: dict[str, Look] = {
    "hf-generate": Look("#4d4d4d", "1", ":", "\\\\"),
    "ar-compiled": Look("#6b6b6b", "2", (0, (3, 1, 1, 1)), "oo"),
}

BONUS = "bonus"  # the target's own token that ends a round
OUTCOME_LOOKS: dict[str, Look] = {
    ACCEPTED: Look("#029e73", "o"),
    WALKED_PAST: Look("#de8f05", "s"),
    UNREACHED: Look("#9a9a9a", "D"),
    BONUS: Look("#0173b2", ">"),
}

INK, SOFT, PAPER = "#222222", "#6b6b6b", "#ffffff"

RC: dict[Any, Any] = {
    "figure.dpi": 100,
    "figure.facecolor": PAPER,
    "savefig.facecolor": PAPER,
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelcolor": INK,
    "axes.edgecolor": "#bbbbbb",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.8,
    "xtick.color": SOFT,
    "ytick.color": INK,
    "text.color": INK,
    "legend.frameon": False,
    "hatch.linewidth": 0.6,
    "svg.hashsalt": "dartree",
}


def use_style() -> None:
    """Set matplotlib's defaults for this session to the look of the project."""
    matplotlib.rcParams.update(RC)


def method_look(method: str) -> Look:
    """The fixed look of ``method`` or of a baseline; another name has one of ADDED_LOOKS.

    A saved result may hold methods that nobody added in this session: they follow the added ones,
    in the order in which they are first drawn.
    """
    fixed = METHOD_LOOKS | BASELINE_LOOKS
    if method in fixed:
        return fixed[method]
    _added[:] = dict.fromkeys((*_added, *(name for name in TABLE if name not in fixed), method))
    return ADDED_LOOKS[_added.index(method) % len(ADDED_LOOKS)]


def tint(color: str, share: float) -> tuple[float, float, float]:
    """``color`` mixed with white: share 1 is the colour itself, 0 is white."""
    red, green, blue = (1 - share * (1 - part) for part in matplotlib.colors.to_rgb(color))
    return red, green, blue
