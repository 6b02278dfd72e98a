"""The tree explorer: one round, its tree, and every control that shapes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import ipywidgets as w

from dartree.analysis.cost import RoundCost, measure_briefly
from dartree.checks import instance
from dartree.methods import METHODS
from dartree.plots.labels import token_label
from dartree.prompts import Prompt
from dartree.settings import TreeSettings
from dartree.stack import Stack
from dartree.widgets import facts
from dartree.widgets.controls import (
    LABEL,
    WIDE,
    Latest,
    Message,
    PromptBox,
    TreeControls,
    menu,
    slider,
)
from dartree.widgets.exports import EXPORTS, download_html
from dartree.widgets.session import Calls, Choice, Session, View
from dartree.widgets.svg import tree_svg


class Explorer(w.VBox):
    """Controls and picture in one box. ``view`` is what is shown, ``session`` what is kept."""

    def __init__(
        self,
        stack: Stack,
        *,
        prompt: Prompt | None = None,
        round: int = 0,
        method: str = "dartree",
        settings: TreeSettings | None = None,
        temperature: float = 0.0,
        seed: int = 0,
        prompts: Sequence[dict[str, Any]] | None = None,
        max_new_tokens: int = 64,
        costs: RoundCost | None = None,
    ) -> None:
        instance("stack", stack, Stack)
        settings = stack.chosen_settings(settings)
        self.session = Session(stack, max_new_tokens)
        self.costs = costs
        self.view: View | Any = None  # until the first look
        self.prompt = PromptBox(stack, prompt, prompts)
        self.tree = TreeControls(settings, stack.target.vocab_size)
        self.method = menu("method", METHODS, method)
        self.round = slider("round", 0, 0, max(0, round))
        self.round.value = round
        self.temperature = w.FloatSlider(
            value=temperature, min=0, max=max(1.5, temperature), step=0.1, style=LABEL, layout=WIDE,
            description="temperature", continuous_update=False,
        )  # fmt: skip
        self.seed = w.BoundedIntText(
            value=seed, min=0, max=2**31 - 1, description="seed", style=LABEL,
            layout=w.Layout(width="240px"),
        )  # fmt: skip
        self.pruned = w.Checkbox(value=True, description="show pruned nodes", indent=False)
        self._build_outputs()
        super().__init__(self._rows())
        self.add_class("dartree-explorer")
        self._updating = False
        self._latest = Latest(self._update)
        self.prompt.text.observe(self._new_text, "value")
        for control in (self.round, *self.tree.all, self.method, self.temperature, self.seed):
            control.observe(self._changed, "value")
        self.pruned.observe(self._redraw, "value")
        self.node.observe(self._redraw, "value")
        self.measure.on_click(self._measure)
        for kind, button in self.exports.items():
            button.on_click(lambda _, kind=kind: self._export(kind))
        self._latest.now()

    def _build_outputs(self) -> None:
        self.message, self.notes = Message(), Message()
        self.numbers, self.calls, self.details = w.HTML(), w.HTML(), w.HTML()
        self.picture = w.HTML(layout=w.Layout(width="100%"))
        self.node = menu("node", [("the anchor", 0)], 0, "440px")
        self.measure = w.Button(
            description="Measure round times", tooltip="A few seconds of decoding on this machine"
        )
        self.measure.layout.display = "none" if self.costs else ""
        self.exports = {
            kind: w.Button(description=kind, tooltip=f"Show the {kind} of this tree")
            for kind in EXPORTS
        }
        self.exported: str | None = None
        self.link = w.HTML()
        self.export_text = w.Textarea(
            description="export", disabled=False, style=LABEL,
            layout=w.Layout(width="100%", height="10em", display="none"),
        )  # fmt: skip

    def _rows(self) -> list[w.Widget]:
        left = w.VBox([self.round, *self.tree.all, self.method, self.temperature])
        right = w.VBox([self.numbers, self.measure, w.HBox([self.seed, self.pruned])])
        return [
            self.prompt.menu, self.prompt.text,
            w.HBox([left, right], layout=w.Layout(flex_flow="row wrap")),
            self.message, self.notes, self.calls, self.picture, self.node, self.details,
            w.HBox([w.Label("Export this tree:"), *self.exports.values()]),
            self.link, self.export_text,
        ]  # fmt: skip

    def choice(self) -> Choice:
        """What the controls say."""
        return Choice(
            self.prompt.prompt(), self.tree.settings(), self.round.value, self.method.value,
            round(self.temperature.value, 4), self.seed.value,
        )  # fmt: skip

    def _changed(self, _: Any) -> None:
        if not self._updating:
            self._latest.request()

    def _new_text(self, _: Any) -> None:
        self._updating = True
        self.round.value = 0
        self._updating = False
        self._latest.request()

    def _update(self) -> None:
        """Look at what the controls say, and show it; after an error the last picture stays."""
        self._updating = True
        try:
            with self.message.errors():
                before = replace(self.session.calls)
                self._fit_rounds()
                self.view = self.session.look(self.choice())
                self._show(self.view, self.session.calls.since(before))
                self.message.say([])
        finally:
            self._updating = False

    def _fit_rounds(self) -> None:
        """Only rounds that the text has can be chosen."""
        choice = self.choice()
        rounds = len(self.session.text(choice.prompt, choice.temperature, choice.seed).anchors)
        self.round.max = max(0, rounds - 1)

    def _show(self, view: View, moved: Calls) -> None:
        stack = self.session.stack
        self.tree.disable(facts.unused(stack, view.choice.method))
        self.notes.say(facts.notes(stack, view))
        self.calls.value = facts.calls_html(moved, self.session.calls)
        self._show_numbers()
        kept = min(self.node.value or 0, len(view.nodes))
        self.node.options = self._node_names(view)
        self.node.value = kept
        self._draw()

    def _show_numbers(self) -> None:
        self.numbers.value = facts.table_html(facts.round_facts(self.view, self.costs), "numbers")

    def _node_names(self, view: View) -> list[tuple[str, int]]:
        decode, tree = self.session.decode, view.nodes
        names = [f"0: {token_label(decode(view.record.anchor))} (anchor)"]
        for node, (token, depth) in enumerate(zip(tree.tokens, tree.depths, strict=True), start=1):
            label = token_label(decode(int(token)))
            names.append(f"{node}: {label} (depth {depth}, {view.outcomes[node - 1]})")
        return [(name, node) for node, name in enumerate(names)]

    def _redraw(self, _: Any) -> None:
        if not self._updating and self.view is not None:
            with self.message.errors():
                self._draw()

    def _draw(self) -> None:
        view, node = self.view, self.node.value or 0
        svg = tree_svg(view, self.session.decode, pruned=self.pruned.value, selected=node)
        self.picture.value = f'<div style="overflow:auto;max-height:75vh">{svg}</div>'
        self.details.value = facts.table_html(
            facts.node_facts(view, node, self.session.decode), "node"
        )
        self._show_export()

    def _export(self, kind: str) -> None:
        """Open one kind, or close it where it is open."""
        self.exported = None if kind == self.exported else kind
        with self.message.errors():
            self._show_export()

    def _show_export(self) -> None:
        kind, text = self.exported, ""
        if kind is not None and self.view is not None:
            text = EXPORTS[kind][2](self.session, self.view)
        self.export_text.value = text
        self.export_text.layout.display = "" if text else "none"
        self.link.value = download_html(kind, text, self.view) if kind and text else ""

    def _measure(self, _: Any) -> None:
        self.measure.disabled = True
        with self.message.errors():
            self.costs = measure_briefly(self.session.stack, self.choice().prompt)
            self._show_numbers()
            self.measure.layout.display = "none"
        self.measure.disabled = False


def explore(stack: Stack, **options: Any) -> Explorer:
    """The tree explorer as one box for a notebook.

    Options: prompt, round, method, settings, temperature and seed to begin with; ``prompts`` for
    the menu (rows of a prompts file), ``max_new_tokens`` of the text, and ``costs`` of
    :func:`dartree.analysis.cost.measure`, without which a button measures them.
    """
    return Explorer(stack, **options)
