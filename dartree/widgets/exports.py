"""The shown tree as text for elsewhere: SVG, JSON, DOT, and the command that draws it again."""

from __future__ import annotations

import base64
import html
import json
import shlex
from collections.abc import Callable

from dartree.plots.labels import Decode, token_label
from dartree.plots.style import BONUS
from dartree.records import ACCEPTED, UNREACHED, WALKED_PAST
from dartree.stack import bundled_stacks
from dartree.widgets.session import PRUNED, Session, View
from dartree.widgets.svg import COLORS, tree_svg

NOTEBOOK = "11_explorer.ipynb"  # takes the same settings as parameters
OUT = "build/explorer"  # so that neither the committed figures nor the working copy change
_SHAPES = {ACCEPTED: "ellipse", WALKED_PAST: "box", UNREACHED: "hexagon", PRUNED: "plaintext"}


def as_json(session: Session, view: View) -> str:
    """What was chosen and the round's record (``RoundRecord.from_dict`` reads it back)."""
    choice, nodes = view.choice, view.nodes
    data = {
        "stack": session.stack.name,
        "prompt": choice.prompt,
        "temperature": choice.temperature,
        "seed": choice.seed,
        "method": choice.method,
        "settings": view.used.to_dict(),
        "record": view.record.to_dict(),
        "nodes": nodes.to_dict()
        | {
            "text": [token_label(session.decode(int(token))) for token in nodes.tokens],
            "outcomes": view.outcomes,
            "target_log_probabilities": [round(float(p), 6) for p in view.judged.node_logps],
        },
    }
    return json.dumps(data, ensure_ascii=False)


def as_dot(view: View, decode: Decode) -> str:
    """A Graphviz digraph of all scored nodes; ``dot -Tsvg`` draws it."""
    tree = view.nodes
    lines = ["digraph round {", "  rankdir=LR; node [fontname=monospace];"]
    lines.append(f"  n0 [shape=box style=filled fillcolor=black fontcolor=white "
                 f"label={_quoted(decode(view.record.anchor))}];")  # fmt: skip
    for node, outcome in enumerate(view.outcomes, start=1):
        token, parent = int(tree.tokens[node - 1]), int(tree.parents[node - 1])
        label = f"label={_quoted(decode(token))} color={json.dumps(COLORS[outcome])}"
        lines.append(f"  n{node} [shape={_SHAPES[outcome]} {label} tooltip={json.dumps(outcome)}];")
        width = 0.5 + 4.5 * float(view.odds[node - 1])
        lines.append(f"  n{parent} -> n{node} [penwidth={width:.2f}];")
    if view.record.missing:
        last, ghost = view.path[-1] if view.path else 0, view.missed or len(tree) + 1
        look = f"shape=cds style=dashed color={json.dumps(COLORS[BONUS])}"
        lines.append(f"  n{ghost} [{look} label={_quoted(decode(view.bonus))} "
                     f"xlabel={json.dumps(view.record.missing)}];")  # fmt: skip
        if not view.missed:
            lines.append(f"  n{last} -> n{ghost} [style=dashed];")
    return "\n".join([*lines, "}"])


def _quoted(text: str | bytes) -> str:
    # DOT knows \" and takes other backslashes and HTML's entities for itself.
    label = token_label(text).replace("&", "&amp;").replace("\\", "\\\\")
    return '"' + label.replace('"', '\\"') + '"'


def command(session: Session, view: View) -> str:
    """Shell commands that draw this round again as a static figure, without a browser."""
    choice, s = view.choice, view.choice.settings
    values = {
        "stack": session.stack.name, "method": choice.method, "round_index": choice.round,
        "width": s.width, "candidates": s.candidates, "budget": s.budget,
        "depth_penalty": s.depth_penalty, "temperature": choice.temperature,
        "seed": choice.seed, "max_new_tokens": session.max_new_tokens,
    }  # fmt: skip
    words = [word for name, value in values.items() for word in ("-p", name, str(value))]
    prompt = choice.prompt
    if not isinstance(prompt, str):
        return "# A prompt of ids has no command: call widgets.explore(stack, prompt=[...])."
    if session.stack.name not in bundled_stacks():
        return "# Only bundled stacks have a command: call widgets.explore(stack, ...)."
    ours = ["dartree", "figures", "--only", NOTEBOOK[:2], "--out", OUT, *words,
            "-p", "prompt", prompt]  # fmt: skip
    papermill = ["papermill", f"notebooks/{NOTEBOOK}", f"{OUT}/{NOTEBOOK}", *words,
                 "-p", "out_dir", OUT, "-r", "prompt", prompt]  # fmt: skip
    return (
        f"# in the checkout\n{shlex.join(ours)}\n\n# or, for the executed notebook alone:\n"
        f"mkdir -p {OUT}\n{shlex.join(papermill)}"
    )


EXPORTS: dict[str, tuple[str, str, Callable[[Session, View], str]]] = {
    "SVG": ("svg", "image/svg+xml", lambda session, view: tree_svg(view, session.decode)),
    "JSON": ("json", "application/json", as_json),
    "DOT": ("dot", "text/vnd.graphviz", lambda session, view: as_dot(view, session.decode)),
    "Command": ("sh", "text/x-shellscript", command),
}


def download_html(kind: str, text: str, view: View) -> str:
    """A link that saves ``text`` as a file."""
    suffix, mime, _ = EXPORTS[kind]
    name = f"dartree-{view.choice.method}-round-{view.choice.round}.{suffix}"
    data = base64.b64encode(text.encode("utf-8")).decode("ascii")
    return (
        f'<a class="dartree-save" download="{html.escape(name)}" style="text-decoration:underline" '
        f'href="data:{mime};charset=utf-8;base64,{data}">Save as {html.escape(name)}</a>'
    )
