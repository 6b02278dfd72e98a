"""What the explorers share: sliders, the prompt box, messages, and the rule of the last value."""

from __future__ import annotations

import asyncio
import html
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import ipywidgets as w

from dartree.checks import first_line
from dartree.prompt_files import load_prompts, prompt_of
from dartree.settings import TreeSettings
from dartree.stack import Stack, data_dir

LABEL = {"description_width": "105px"}
WIDE = w.Layout(width="400px")
OWN = -1  # menu entry: the text in the box is none of the menu's
_DELAY = 0.03  # seconds without a further change after which work begins


class Latest:
    """Does ``work`` for the last of a burst of requests, and only for that one.

    Requests of a drag arrive as messages of the kernel's event loop. Work waits until no further
    one has arrived; ``work`` may be a generator function, whose yields let the loop look: a newer
    request then ends it and starts again. Without a running loop all is done at once.
    """

    def __init__(self, work: Callable[[], Iterator[None] | None]) -> None:
        self._work, self._ticket = work, 0

    def request(self, *_: Any) -> None:
        """Ask for work; may be used as an observer."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self.now()
            return
        self._ticket += 1
        loop.call_later(_DELAY, self._begin, loop, self._ticket)

    def now(self) -> None:
        """Do all the work before returning."""
        self._ticket += 1
        for _ in self._work() or ():
            pass

    def _begin(self, loop: asyncio.AbstractEventLoop, ticket: int) -> None:
        if ticket == self._ticket:
            self._go_on(loop, ticket, iter(self._work() or ()))

    def _go_on(self, loop, ticket: int, steps: Iterator[None]) -> None:
        if ticket == self._ticket and next(steps, self) is not self:
            loop.call_later(0.001, self._go_on, loop, ticket, steps)


class Message(w.HTML):
    """A place for sentences beside the controls."""

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Show what goes wrong in the block as a sentence; a success clears the last one."""
        try:
            yield
        except Exception as error:  # a person at a slider is no place for a traceback
            known = isinstance(error, ValueError)
            text = str(error) if known else f"{type(error).__name__}: {first_line(error)}"
            self.say([text], alert=True)

    def say(self, sentences: Sequence[str], alert: bool = False) -> None:
        """Show ``sentences``, one a line; none clears the place."""
        role = ' role="alert"' if alert else ""
        border = "#b00020" if alert else "#0173b2"
        lines = "<br>".join(html.escape(sentence) for sentence in sentences)
        self.value = (
            f'<div{role} class="dartree-message" style="border-left:4px solid {border};'
            f'padding:2px 8px;line-height:1.5">{"Error: " if alert else ""}{lines}</div>'
            if sentences
            else ""
        )


class TreeControls:
    """Sliders for W, K, B and the depth penalty, beginning at ``settings``."""

    def __init__(self, settings: TreeSettings, vocabulary: int) -> None:
        self.base = settings
        counts = {1, 2, 4, 8, 16, 32, 64, 128, 256, settings.candidates}
        self.width = slider("W: width", settings.width, 1, max(32, settings.width))
        self.candidates = w.SelectionSlider(
            options=sorted(min(count, vocabulary) for count in counts), description="K: candidates",
            value=min(settings.candidates, vocabulary), continuous_update=False, style=LABEL,
            layout=WIDE,
        )  # fmt: skip
        self.budget = slider("B: budget", settings.budget, 1, max(192, settings.budget))
        self.depth_penalty = w.FloatSlider(
            value=settings.depth_penalty, min=0, max=max(2.0, settings.depth_penalty), step=0.05,
            description="depth penalty", continuous_update=False, style=LABEL, layout=WIDE,
        )  # fmt: skip
        self.all = (self.width, self.candidates, self.budget, self.depth_penalty)

    def settings(self) -> TreeSettings:
        """What the sliders say."""
        return replace(
            self.base, width=self.width.value, candidates=self.candidates.value,
            budget=self.budget.value, depth_penalty=round(self.depth_penalty.value, 4),
        )  # fmt: skip

    def disable(self, names: Sequence[str]) -> None:
        """Grey out the sliders ``names``, and no others."""
        for name in ("width", "candidates", "budget", "depth_penalty"):
            getattr(self, name).disabled = name in names


def slider(label: str, value: int, low: int, high: int) -> w.IntSlider:
    return w.IntSlider(
        value=value, min=low, max=high, description=label, continuous_update=False, style=LABEL,
        layout=WIDE,
    )  # fmt: skip


def menu(label: str, options: Sequence, value: Any, width: str = "400px") -> w.Dropdown:
    return w.Dropdown(
        options=options, value=value, description=label, style=LABEL, layout=w.Layout(width=width)
    )


class PromptBox:
    """A menu of prompts and the text itself, which may be changed freely."""

    def __init__(self, stack: Stack, prompt: Any, rows: Sequence[dict[str, Any]] | None) -> None:
        self._stack = stack
        rows = bundled_prompts(stack) if rows is None else rows
        self.texts = [shown_prompt(prompt_of(row)) for row in rows]
        if prompt is None:
            if not rows:
                raise ValueError("give a prompt: this stack has no tokenizer for the bundled ones.")
            prompt = self.texts[0]
        options = [
            (f"{row['id']}: {' '.join(text.split())[:70]}", i)
            for i, (row, text) in enumerate(zip(rows, self.texts, strict=True))
        ]
        options.append(("the text in the box", OWN))
        text = shown_prompt(prompt)
        self.menu = menu("prompt menu", options, self._place(text), "820px")
        self.text = w.Textarea(
            value=text, description="prompt", continuous_update=False, style=LABEL,
            layout=w.Layout(width="820px", height="4em"),
        )  # fmt: skip
        self.menu.observe(self._chosen, "value")
        self.text.observe(self._edited, "value")

    def _place(self, text: str) -> int:
        return self.texts.index(text) if text in self.texts else OWN

    def _chosen(self, change: dict[str, Any]) -> None:
        if change["new"] != OWN:
            self.text.value = self.texts[change["new"]]

    def _edited(self, change: dict[str, Any]) -> None:
        self.menu.value = self._place(change["new"])

    def prompt(self) -> str | tuple[int, ...]:
        """What is in the box: a text, or ids where the stack has no tokenizer."""
        if self._stack.tokenizer is not None:
            return self.text.value
        try:
            return tuple(int(part) for part in self.text.value.replace(",", " ").split())
        except ValueError:
            raise ValueError(
                "prompt must be token ids such as 5, 17, 3: this stack has no tokenizer."
            ) from None


def shown_prompt(prompt: Any) -> str:
    """A prompt as the box shows it: text as it is, ids with commas."""
    return prompt if isinstance(prompt, str) else ", ".join(str(i) for i in prompt)


def bundled_prompts(stack: Stack, limit: int = 4) -> list[dict[str, Any]]:
    """The first held-out prompts of each domain; none for a stack without a tokenizer."""
    if stack.tokenizer is None:
        return []
    files = sorted((data_dir() / "prompts").glob("*.jsonl"))
    return [row for file in files for row in load_prompts(file, limit) if "prompt" in row]
