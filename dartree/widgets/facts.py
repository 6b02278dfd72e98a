"""What is known about a round and its nodes, in words: for hovers, tables and notes."""

from __future__ import annotations

import html
import math
import unicodedata
from collections.abc import Sequence

import numpy as np

from dartree.analysis.cost import RoundCost
from dartree.checks import counted
from dartree.methods import used_settings
from dartree.plots.labels import Decode, token_label
from dartree.records import REASONS
from dartree.settings import TreeSettings
from dartree.stack import Stack
from dartree.widgets.session import Calls, View

Facts = list[tuple[str, str]]

SYMBOLS = {"width": "W", "candidates": "K", "budget": "B", "depth_penalty": "the depth penalty"}


def probability(logp: float) -> str:
    """A log-probability as a probability, small ones by their magnitude."""
    p = math.exp(min(float(logp), 0.0))
    return f"{p:.3f}" if p >= 0.001 else f"{p:.0e}" if p else "0"


def _isolated(text: str | bytes) -> str:
    """A label that cannot turn around what stands beside it, should it read from right to left."""
    label = token_label(text)
    backwards = any(unicodedata.bidirectional(character) in ("R", "AL") for character in label)
    return f"\u2068{label}\u2069" if backwards else label


def _token(decode: Decode, token: int) -> Facts:
    """A token and its id; its characters too where a font may lack them."""
    text = decode(token)
    found = [("token", f"{_isolated(text)} (id {token})")]
    if isinstance(text, str) and not text.isascii():
        found.append(("characters", " ".join(f"U+{ord(character):04X}" for character in text)))
    return found


def node_facts(view: View, node: int, decode: Decode) -> Facts:
    """Everything about node ``node`` (1..N of ``view.nodes``); 0 is the anchor."""
    judged, own = view.judged, int(view.judged.choices[node])
    after = "not drawn: the walk did not come here"
    if own >= 0:
        after = f"{_isolated(decode(own))} ({probability(judged.choice_logps[node])})"
    if node == 0:
        return [
            *_token(decode, view.record.anchor), ("outcome", "anchor"),
            ("target's own token after it", after),
        ]  # fmt: skip
    tree, i = view.nodes, node - 1
    siblings = view.odds[tree.parents == tree.parents[i]]
    place = 1 + int((siblings > view.odds[i]).sum())
    words = [_isolated(decode(int(tree.tokens[n - 1]))) for n in tree.path(node)]
    return [
        *_token(decode, int(tree.tokens[i])),
        ("outcome", view.outcomes[i]),
        ("depth", str(tree.depths[i])),
        ("conditional under its parent", f"{view.odds[i]:.3g}"),
        ("path score (log-probability)", f"{tree.scores[i]:.3f}"),
        ("rank for the budget", f"{view.ranks[i]} of {len(tree)}"),
        ("rank among its siblings", f"{place} of {len(siblings)} kept"),
        ("target's probability", probability(judged.node_logps[i])),
        ("target's own token after it", after),
        ("path", " ".join(words)),
    ]


def ghost_facts(view: View, decode: Decode) -> Facts:
    """About the target's own token where no node stands for it."""
    row = view.path[-1] if view.path else 0
    return [
        *_token(decode, view.bonus),
        ("outcome", "the target's own token"),
        ("not in the tree", view.record.missing or "nothing was drafted"),
        ("target's probability", probability(view.judged.choice_logps[row])),
    ]


def round_facts(view: View, costs: RoundCost | None = None) -> Facts:
    """The numbers beside the picture."""
    record = view.record
    accepted, committed = len(record.path), len(record.committed)
    facts = [
        ("tokens committed (this round's tau)", f"{committed}: {accepted} accepted + 1 bonus"),
        ("expected under the head", f"{view.expected:.2f} with the bonus ({_summed(view)})"),
        ("head calls of the round", str(record.head_calls)),
        ("verified nodes", f"{len(record.tree)} of {len(view.nodes)} scored"),
    ]
    if committed <= accepted:
        facts[0] = (facts[0][0], f"{committed}: the text ends here")
    if record.missing:
        facts.append(("why the bonus was not in the tree", record.missing))
    time = (
        "not measured yet"
        if costs is None
        else f"{round_ms(view, costs):.1f} ms (from a curve measured here)"
    )
    return [*facts, ("predicted round time", time)]


FEW = 16  # candidates; over fewer the probabilities are visibly too high


def _summed(view: View) -> str:
    """What the expectation adds up, in few words: longer ones push the facts below the sliders."""
    if view.normalise == "vocabulary":
        return "odds over the vocabulary"
    candidates = view.used.candidates
    return f"odds over K = {candidates}{', so too high' if candidates < FEW else ''}"


def reasons_markdown() -> str:
    """Why a token can be missing from the tree, and what would have held it, as a table."""
    rows = [f"| *{name}* | {meaning} | {cure} |" for name, (meaning, cure) in REASONS.items()]
    head = ["| reason | what happened to the target's own token | what would have held it |"]
    return "\n".join([*head, "|---|---|---|", *rows])


def round_ms(view: View, costs: RoundCost) -> float:
    """Predicted milliseconds of the round in ``view``."""
    record = view.record
    return costs.round_ms(record.method, len(record.tree), record.head_calls, view.used)


def unused(stack: Stack, method: str) -> list[str]:
    """Tree settings that ``method`` does not use, or takes another value for."""
    probe = TreeSettings(width=3, candidates=5, budget=7, depth_penalty=0.3)
    drafts, given = stack.pairing(method).drafts, probe.to_dict()
    used = used_settings(method, probe, drafts, stack.target.vocab_size)
    return [name for name in SYMBOLS if used[name] != given[name]]


def notes(stack: Stack, view: View) -> list[str]:
    """Why a control does less than it says, one sentence each."""
    method, used, tree = view.choice.method, view.used, view.nodes
    idle = unused(stack, method)
    found = []
    if idle:
        found.append(f"{method} does not use {_listed([SYMBOLS[name] for name in idle])}.")
    if method == "dartree":
        if used.budget >= len(tree):
            held = counted(len(tree), "node")
            found.append(f"The supertree has {held}; B = {used.budget} keeps all.")
        sizes = np.bincount(tree.depths)[1:]
        short = np.flatnonzero(sizes < used.width)
        if short.size:
            depth = int(short[0]) + 1
            held = counted(int(sizes[depth - 1]), "node")
            found.append(
                f"W = {used.width}, but depth {depth} has only {held}: "
                f"no more than rows * K can be kept."
            )
    if method == "dartree-fixed":
        found.append("dartree-fixed prunes nothing: its width follows from B.")
    if used.candidates < view.choice.settings.candidates:
        found.append(f"K is held at the vocabulary's {used.candidates} tokens.")
    return found


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]


def calls_html(moved: Calls, total: Calls) -> str:
    """The counters: what this picture cost beyond what was kept, and all so far."""
    cells = "".join(
        f"<td style='padding:0 10px'>{name}: <b>+{now}</b> ({every})</td>"
        for name, now, every in (
            ("drafter forwards", moved.drafter, total.drafter),
            ("head calls", moved.head, total.head),
            ("target forwards", moved.target, total.target),
        )
    )
    return (
        "<table class='dartree-calls' style='line-height:1.6'><tr>"
        f"<td>Model calls for this picture (in all)</td>{cells}</tr></table>"
    )


def table_html(facts: Facts, name: str) -> str:
    """Facts as a table of two columns; ``name`` is its CSS class, which tests look for."""
    rows = "".join(
        f"<tr><th scope='row' style='text-align:left;font-weight:normal;padding:0 12px 0 0;"
        f"color:var(--jp-ui-font-color2,#555);vertical-align:top'>{html.escape(key)}</th>"
        f"<td style='overflow-wrap:anywhere'>{html.escape(value)}</td></tr>"
        for key, value in facts
    )
    return f"<table class='dartree-{name}' style='line-height:1.5'>{rows}</table>"
