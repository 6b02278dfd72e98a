"""The what-if panel: tau and an estimate of speed as curves over one setting, by replay."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import ipywidgets as w
import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from dartree.analysis import grids
from dartree.analysis.cost import RoundCost, measure_briefly
from dartree.analysis.replay import Replay
from dartree.bench import SWEEPS
from dartree.plots.style import RC
from dartree.plots.whatif import draw_what_if
from dartree.prompt_files import prompt_of
from dartree.prompts import Prompt
from dartree.settings import TreeSettings
from dartree.stack import Stack
from dartree.widgets.controls import Latest, Message, TreeControls, bundled_prompts, menu

PARAMETERS = ("budget", "width", "candidates", "depth_penalty")  # in the menu's order


@dataclass
class Curve:
    """tau and tokens/s (both [values]) while ``parameter`` changes; ``current`` is marked.

    tokens/s is an estimate: tau over the predicted time of a round with a full tree.
    """

    parameter: str
    current: float
    values: list[float]
    tau: list[float]
    tokens_per_second: list[float]


def curve_values(parameter: str, current: float, largest: float) -> list[float]:
    """The values of the benchmark's sweep up to ``largest``, with the current one."""
    return sorted({v for v in SWEEPS[parameter] if v <= largest} | {current})


def curves(
    replay: Replay, settings: TreeSettings, parameter: str, costs: RoundCost
) -> Iterator[Curve]:
    """The curve as it grows, value by value, the current one first; the last is complete."""
    if parameter not in PARAMETERS:
        raise ValueError(f"parameter must be one of {', '.join(PARAMETERS)}, got {parameter!r}.")
    current = getattr(settings, parameter)
    largest = replay.stack.target.vocab_size if parameter == "candidates" else float("inf")
    found: dict[float, grids.Point] = {}
    for value in sorted(curve_values(parameter, current, largest), key=lambda v: v != current):
        (found[value],) = grids.grid(replay, settings, {parameter: [value]}, costs)
        points = [found[v] for v in sorted(found)]
        yield Curve(
            parameter, current, sorted(found),
            [point.tau for point in points], [point.tokens_per_second for point in points],
        )  # fmt: skip


def curve_html(curve: Curve) -> str:
    """The curve as a picture with a text that says the same."""
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(10, 3.4))  # not pyplot's: nothing is left open
        FigureCanvasAgg(figure)
        draw_what_if(figure.subplots(1, 2), curve)
        figure.tight_layout()
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=100)
    data = base64.b64encode(buffer.getvalue()).decode("ascii")
    at = curve.values.index(curve.current)
    alt = (
        f"tau and estimated tokens per second over {curve.parameter.replace('_', ' ')}; at "
        f"{curve.current:g}: tau {curve.tau[at]:.2f}, {curve.tokens_per_second[at]:.0f} tokens/s"
    )
    return (
        f'<img src="data:image/png;base64,{data}" alt="{html.escape(alt)}" style="max-width:100%">'
    )


class WhatIf(w.VBox):
    """Sliders, one parameter to vary, and the two curves; B and the penalty need no model."""

    def __init__(
        self,
        stack: Stack,
        *,
        prompts: Sequence[Prompt] | None = None,
        settings: TreeSettings | None = None,
        parameter: str = "budget",
        max_new_tokens: int = 64,
        costs: RoundCost | None = None,
        replay: Replay | None = None,
    ) -> None:
        settings = stack.chosen_settings(settings)
        if replay is None:
            if prompts is None:
                prompts = [prompt_of(row) for row in bundled_prompts(stack, 1)]
            if not prompts:
                raise ValueError("give prompts: this stack has none that are bundled.")
            replay = Replay(stack, prompts, max_new_tokens)
        self.replay = replay
        self.costs = costs or measure_briefly(stack, replay.texts[0].prompt)
        self.tree = TreeControls(settings, stack.target.vocab_size)
        options = [(name.replace("_", " "), name) for name in PARAMETERS]
        self.parameter = menu("vary", options, parameter)
        self.message, self.picture, self.words = Message(), w.HTML(), w.HTML()
        super().__init__([self.parameter, *self.tree.all, self.message, self.words, self.picture])
        self.add_class("dartree-what-if")
        self.curve: Curve | None = None
        self._latest = Latest(self._update)
        for control in (self.parameter, *self.tree.all):
            control.observe(self._latest.request, "value")
        self._latest.now()

    def _update(self) -> Iterator[None]:
        """Value by value, so that a newer setting does not wait for the rest of an older curve."""
        with self.message.errors():
            settings, parameter = self.tree.settings(), self.parameter.value
            self.message.say(["Computing the curve …"])
            for curve in curves(self.replay, settings, parameter, self.costs):
                self.curve = curve
                yield
            self.picture.value = curve_html(curve)
            self.words.value = self._sentence(curve)
            self.message.say([])

    def _sentence(self, curve: Curve) -> str:
        at, best = curve.values.index(curve.current), max(curve.tokens_per_second)
        top = curve.values[curve.tokens_per_second.index(best)]
        tokens = sum(len(text.answer) for text in self.replay.texts)
        return (
            f"tau <b>{curve.tau[at]:.2f}</b> and about <b>{curve.tokens_per_second[at]:.0f}</b> "
            f"tokens/s at {curve.parameter.replace('_', ' ')} = {curve.current:g}; the most tokens "
            f"per second on this curve at {top:g}. Replayed on {len(self.replay.texts)} texts, "
            f"{tokens} tokens."
        )


def what_if(stack: Stack, **options: Any) -> WhatIf:
    """The what-if panel as one box for a notebook.

    Options: ``prompts`` (texts or ids) and ``max_new_tokens`` of the texts that are replayed, or
    a ready ``replay``; settings and ``parameter`` to begin with; ``costs`` of
    :func:`dartree.analysis.cost.measure`, measured at once where they are not given.
    """
    return WhatIf(stack, **options)
