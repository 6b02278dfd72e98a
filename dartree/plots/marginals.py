"""Guesses that know nothing of the drafts before them, and guesses that do."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from dartree.plots.parts import draw_line
from dartree.plots.style import INK, method_look

LOOKS = {"marginals": method_look("dflash"), "corrected": method_look("dartree")}


def draw_positions(ax: Axes, values: Mapping[str, np.ndarray], label: str) -> Axes:
    """One line a kind of guess ("marginals", "corrected") over draft positions 1..n."""
    for name, line in values.items():
        draw_line(ax, range(1, len(line) + 1), line, LOOKS[name], name)
    ax.set_xlabel("draft position")
    ax.set_ylabel(label)
    ax.set_ylim(0, 1)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.legend()
    return ax


def draw_table(ax: Axes, table: np.ndarray, words: list[str], title: str) -> Axes:
    """A table of probabilities [n, V] as a heat map with its numbers; zeros are left empty."""
    ax.imshow(table, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    for (i, j), p in np.ndenumerate(table):
        if p > 0:
            ax.text(j, i, f"{p:.2f}", ha="center", va="center", size=9,
                    color="white" if p > 0.6 else INK)  # fmt: skip
    ax.set_xticks(range(len(words)), words, rotation=30, ha="right")
    ax.set_yticks(range(len(table)), [f"position {i + 1}" for i in range(len(table))])
    ax.grid(visible=False)
    ax.set_title(title)
    return ax
