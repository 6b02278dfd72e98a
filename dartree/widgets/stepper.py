"""The decoder stepper: two methods write the same text, one verification at a time."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import ipywidgets as w

from dartree.checks import counted
from dartree.decode import Generation
from dartree.methods import METHODS
from dartree.plots.labels import Decode
from dartree.plots.rounds import rounds_html
from dartree.prompts import Prompt
from dartree.settings import TreeSettings
from dartree.stack import Stack
from dartree.widgets.controls import Latest, Message, PromptBox, menu, slider
from dartree.widgets.session import Session


def step_html(run: Generation, rounds: int, decode: Decode) -> str:
    """The text of ``run`` after ``rounds`` rounds, and whether it has come to its end."""
    shown = run.records[:rounds]
    done = len(shown) == run.rounds
    state = (
        f"finished after {counted(run.rounds, 'round')} ({run.stop_reason})"
        if done
        else "still writing"
    )
    return (
        f"{rounds_html(shown, decode)}<div class='dartree-step' style='padding:2px 10px'>"
        f"{html.escape(state)}</div>"
    )


class Stepper(w.VBox):
    """Two runs on one prompt, side by side, after the same number of target forwards."""

    def __init__(
        self,
        stack: Stack,
        *,
        prompt: Prompt | None = None,
        methods: Sequence[str] = ("dflash", "dartree"),
        settings: TreeSettings | None = None,
        temperature: float = 0.0,
        seed: int = 0,
        prompts: Sequence[dict[str, Any]] | None = None,
        max_new_tokens: int = 64,
    ) -> None:
        if len(methods) != 2:
            raise ValueError(f"methods must name two methods, got {len(methods)}.")
        self.settings = stack.chosen_settings(settings)
        self.session = Session(stack, max_new_tokens)
        self.temperature, self.seed = temperature, seed
        self.prompt = PromptBox(stack, prompt, prompts)
        self.methods = [
            menu(name, METHODS, method, "300px")
            for name, method in zip(("left method", "right method"), methods, strict=True)
        ]
        self.round = slider("rounds", 1, 1, 1)
        self.play = w.Play(min=1, max=1, interval=700, description="play")
        self.back = w.Button(description="previous", layout=w.Layout(width="90px"))
        self.forth = w.Button(description="next", layout=w.Layout(width="90px"))
        self.message = Message()
        self.sides = [w.HTML(layout=w.Layout(width="50%")) for _ in methods]
        super().__init__([
            self.prompt.menu, self.prompt.text, w.HBox(self.methods),
            w.HBox([self.round, self.back, self.forth, self.play]), self.message,
            w.HBox(self.sides),
        ])  # fmt: skip
        self.add_class("dartree-stepper")
        self._latest = Latest(self._update)
        w.link((self.play, "value"), (self.round, "value"))
        self.back.on_click(lambda _: self._move(-1))
        self.forth.on_click(lambda _: self._move(1))
        for control in (self.prompt.text, *self.methods):
            control.observe(self._restart, "value")
        self.round.observe(self._latest.request, "value")
        self._latest.now()

    def _move(self, step: int) -> None:
        self.round.value = min(max(self.round.value + step, 1), self.round.max)

    def _restart(self, _: Any) -> None:
        self.round.value = 1
        self._latest.request()

    def _update(self) -> None:
        with self.message.errors():
            prompt, how = self.prompt.prompt(), (self.settings, self.temperature, self.seed)
            runs = [self.session.run(prompt, method.value, *how) for method in self.methods]
            last = max(1, *(run.rounds for run in runs))
            self.round.max = self.play.max = last
            for side, run in zip(self.sides, runs, strict=True):
                side.value = step_html(run, self.round.value, self.session.decode)
            self.message.say([])


def step(stack: Stack, **options: Any) -> Stepper:
    """The decoder stepper as one box for a notebook.

    Options: prompt, the two ``methods`` to begin with, settings, temperature, seed, ``prompts``
    for the menu and ``max_new_tokens``.
    """
    return Stepper(stack, **options)
