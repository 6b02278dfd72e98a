"""What the standard library of the interpreter that runs this says: functions and their docstrings.

Read at build time and not kept (PSF License Agreement, version 2).
"""

from __future__ import annotations

import ast
import functools
import sysconfig
import textwrap
from collections.abc import Iterator
from pathlib import Path

SKIPPED = ("site-packages", "dist-packages", "test", "idlelib", "encodings", "lib2to3")
Sample = tuple[str, str, str]  # module, request, answer


@functools.cache
def modules() -> tuple[tuple[str, str, ast.Module], ...]:
    """(path in the library, source, syntax tree) of every module that can be read."""
    root, found = Path(sysconfig.get_paths()["stdlib"]), []
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if any(part in name for part in SKIPPED):
            continue
        try:
            source = path.read_text(encoding="utf-8")
            found.append((name, source, ast.parse(source)))
        except (SyntaxError, ValueError, OSError):
            continue
    return tuple(found)


def functions(longest: int = 25) -> Iterator[Sample]:
    """Documented functions of at most `longest` lines: what was asked for is their docstring."""
    for name, source, tree in modules():
        lines = source.split("\n")
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                pair = _function(node, lines, longest)
                if pair:
                    yield name, *pair


def notes() -> Iterator[Sample]:
    """What a public function, class or module is for: the first paragraph of its docstring."""
    for name, _, tree in modules():
        module = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        nodes = [n for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)]
        nodes += [n for c in nodes if isinstance(c, ast.ClassDef) for n in c.body
                  if isinstance(n, ast.FunctionDef)]  # fmt: skip
        pairs = [(f"What is the module `{module}` for?", ast.get_docstring(tree))]
        for node in nodes:
            if not node.name.startswith("_"):
                kind = "class" if isinstance(node, ast.ClassDef) else "function"
                ask = f"What is the {kind} `{node.name}` of `{module}` for?"
                pairs.append((ask, ast.get_docstring(node)))
        for ask, doc in pairs:
            text = " ".join((doc or "").split("\n\n")[0].split())
            if 40 <= len(text) <= 400 and text.isascii():
                yield name, ask, text


def _function(node: ast.FunctionDef, source: list[str], longest: int) -> tuple[str, str] | None:
    """The request and the answer for one function, or None where it does not suit."""
    lines = source[node.lineno - 1 : node.end_lineno]
    if not 3 <= len(lines) <= longest or node.name.startswith("__"):
        return None
    doc = ast.get_docstring(node)
    if not doc:
        return None
    sentence = " ".join(doc.split("\n\n")[0].split()).split(". ")[0].rstrip(".")
    lines[-1] = lines[-1].encode()[: node.end_col_offset].decode()  # no comment after the end
    code = textwrap.dedent("\n".join(lines)).rstrip()
    if not sentence.isascii() or not code.isascii() or len(sentence) > 120 or len(code) > 900:
        return None
    arguments = ast.unparse(node.args)
    request = f"Write a Python function `{node.name}({arguments})`: {sentence}."
    return request, "```python\n" + code + "\n```"
