"""Options that several commands share: how they are declared, and what their text means.

Arguments arrive as text and are converted here, so that a bad one gets the same sentence from the
command line as from Python.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dartree.settings import TreeSettings
    from dartree.stack import Stack

MOST_THREADS = 1024  # more cannot be started on every machine, and that would end the process


class LazyParser(argparse.ArgumentParser):
    """A parser whose options are those of ``module``, imported when it has to parse, not before.

    So the list of commands and the version wait neither for torch nor for transformers. No option
    may be abbreviated: it would change its meaning when another one is added.
    """

    def __init__(self, *args: Any, module: str | None = None, **options: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **options})
        self._module = module

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if self._module:
            found, self._module = importlib.import_module(self._module), None
            found.add_arguments(self)
            # `train` has none: its steps have.
            self.set_defaults(handler=getattr(found, "run", None))
        return super().parse_known_args(args, namespace)


def checkpoint_arguments(parser: argparse._ActionsContainer) -> None:
    """A target and its drafters."""
    names = {"target": "Qwen3 target", "drafter": "its drafter",
             "dflash": "its drafter without a head, for dflash and ddtree"}  # fmt: skip
    for name, what in names.items():
        parser.add_argument(
            f"--{name}", metavar="PATH_OR_ID", help=f"{what}: a folder or owner/name[@revision]"
        )


def stack_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--stack", help="a bundled stack (default: tiny)")
    checkpoint_arguments(parser)
    parser.add_argument("--dtype", help="float32 (default on CPU), bfloat16, ...")
    parser.add_argument("--device", help="cpu (default), cuda, ...")
    parser.add_argument(
        "--device-map", metavar="MAP", help="auto, ...: a target's layers on several GPUs"
    )
    parser.add_argument("--threads", metavar="N", help="CPU threads")
    parser.add_argument(
        "--compile", nargs="?", const="all", metavar="all|head",
        help="torch.compile for all (target, drafter, a head that is not fused) or the head alone",
    )  # fmt: skip
    parser.add_argument(
        "--cuda-graphs", action="store_true",
        help="with --compile on a GPU: record what is compiled as CUDA graphs",
    )  # fmt: skip
    parser.add_argument(
        "--pack", action=argparse.BooleanOptionalAction,
        help="weights in oneDNN's layout (default: in float32 on a CPU "
        "without --device-map, up to 1 GiB of them)",
    )  # fmt: skip
    parser.add_argument(
        "--fuse", action=argparse.BooleanOptionalAction,
        help="top-K and the head's steps as C functions (default: in float32 on a CPU "
        "where a C compiler is found)",
    )  # fmt: skip


def tree_arguments(parser: argparse.ArgumentParser, of_stack: bool = True) -> None:
    """``of_stack``: whether what is not given comes from the stack, or else from TreeSettings."""
    from dartree.settings import TreeSettings

    d = TreeSettings()
    values = f"W {d.width}, K {d.candidates}, B {d.budget}, P {d.depth_penalty:g}"
    defaults = f"the stack's settings; tiny has {values}" if of_stack else values
    tree = parser.add_argument_group(f"tree (defaults: {defaults})")
    tree.add_argument("--width", metavar="W", help="nodes kept per depth of the supertree")
    tree.add_argument("--candidates", metavar="K", help="tokens proposed per depth")
    tree.add_argument("--budget", metavar="B", help="nodes verified, the anchor not counted")
    tree.add_argument("--depth-penalty", metavar="P", help="subtracted per level before Top-B")
    tree.add_argument("--depth", metavar="D", help="deepest level (default: all draft positions)")
    tree.add_argument("--normalise", help="candidates or vocabulary")
    tree.add_argument("--score-temperature", metavar="T", help="divides head logits (default 1)")


def sampling_arguments(parser: argparse.ArgumentParser, max_new_tokens: int) -> None:
    parser.add_argument(
        "--max-new-tokens", default=str(max_new_tokens), metavar="N",
        help=f"length limit of a text (default {max_new_tokens})",
    )  # fmt: skip
    parser.add_argument(
        "--temperature", default="0", metavar="T", help="0, the default, is greedy decoding"
    )
    parser.add_argument("--top-p", metavar="P", help="the likeliest tokens that make up P")
    parser.add_argument("--top-k", metavar="K", help="the K likeliest tokens")
    parser.add_argument(
        "--min-p", metavar="P", help="tokens at least P times as likely as the best"
    )
    parser.add_argument("--seed", default="0", metavar="S", help="of sampling (default 0)")


def integer(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{name} must be an integer, got {text!r}.") from None


def _float(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{name} must be a number, got {text!r}.") from None


def tree_settings(args: argparse.Namespace, settings: TreeSettings) -> TreeSettings:
    from dataclasses import replace

    given: dict[str, Any] = {}
    for name in ("width", "candidates", "budget", "depth"):
        if getattr(args, name) is not None:
            given[name] = integer(name, getattr(args, name))
    for name in ("depth_penalty", "score_temperature"):
        if getattr(args, name) is not None:
            given[name] = _float(name, getattr(args, name))
    if args.normalise is not None:
        given["normalise"] = args.normalise
    return replace(settings, **given)


def sampling(args: argparse.Namespace) -> dict[str, Any]:
    options: dict[str, Any] = {
        "max_new_tokens": integer("max_new_tokens", args.max_new_tokens),
        "temperature": _float("temperature", args.temperature),
        "seed": integer("seed", args.seed),
    }
    if args.top_k is not None:
        options["top_k"] = integer("top_k", args.top_k)
    for name in ("top_p", "min_p"):
        if getattr(args, name) is not None:
            options[name] = _float(name, getattr(args, name))
    return options


def option(name: str) -> str:
    """How the command line names the argument ``name``."""
    return f"--{name.replace('_', '-')}"


def generate_options(args: argparse.Namespace, ids: list[int], settings: TreeSettings) -> list[str]:
    """Options of `dartree generate` for the prompt ``ids``: the stack and sampling of ``args``."""
    names = (
        "stack", "target", "drafter", "dflash", "dtype", "device", "device_map", "threads",
        "temperature", "seed", "top_p", "top_k", "min_p",
    )  # fmt: skip
    given = {name: getattr(args, name) for name in names} | settings.to_dict()
    line = ["--ids", ",".join(map(str, ids)), "--max-new-tokens", args.max_new_tokens]
    for name, value in given.items():
        if value is not None:
            line += [option(name), str(value)]
    for name in ("pack", "fuse"):
        if (asked := getattr(args, name)) is not None:
            line.append(option(name if asked else f"no_{name}"))
    return line


def check_early(args: argparse.Namespace, methods: list[str]) -> None:
    """Refuse bad settings before any model is loaded."""
    from dartree.acceptance import Chooser
    from dartree.checks import positive_int
    from dartree.methods import check_method
    from dartree.settings import TreeSettings

    for method in methods:
        check_method(method)
    tree_settings(args, TreeSettings())
    options = sampling(args)
    positive_int("max_new_tokens", options.pop("max_new_tokens"))
    Chooser(**options)


def use_threads(text: str | None) -> None:
    """Let torch use the threads of --threads; None leaves their number as it is."""
    import torch

    from dartree.checks import positive_int

    if text is None:
        return
    threads = positive_int("threads", integer("threads", text))
    if threads > MOST_THREADS:
        raise ValueError(f"threads must be at most {MOST_THREADS}, got {threads}.")
    torch.set_num_threads(threads)


def check_compile(args: argparse.Namespace) -> None:
    """ValueError for a value of --compile that is none; it may be the word that follows it."""
    if args.compile not in (None, "all", "head"):
        raise ValueError(f"compile must be all or head, got {args.compile!r}.")


def load(args: argparse.Namespace) -> Stack:
    import torch

    from dartree.machine import OtherJobs
    from dartree.stack import load_stack
    from dartree.tensor_parallel import TENSOR_PARALLEL

    check_compile(args)
    if args.cuda_graphs and args.compile is None:
        raise ValueError("cuda_graphs needs --compile: what is compiled is recorded.")
    if args.fuse and args.compile == "head":
        raise ValueError("fuse cannot be combined with --compile head, whose graph is the head's.")
    if args.pack and args.compile == "all":
        raise ValueError(
            "pack cannot be combined with --compile all, whose graphs take plain weights."
        )
    use_threads(args.threads)
    if args.device_map is not None and args.device is not None:
        raise ValueError("give either device or device_map, not both.")
    if args.device_map is not None and args.compile == "all":
        raise ValueError("device_map can be combined with --compile head only, got all.")
    if args.device_map == TENSOR_PARALLEL:
        raise ValueError(f"device_map {TENSOR_PARALLEL} is for dartree paper only.")
    jobs = OtherJobs()
    stack = load_stack(
        args.stack, target=args.target, drafter=args.drafter, dflash=args.dflash,
        dtype=args.dtype, device=args.device, device_map=args.device_map, pack=args.pack,
        fuse=args.fuse,
    )  # fmt: skip
    if stack.target.device.type == "cpu" and (advice := jobs.advice(torch.get_num_threads())):
        print(f"[{advice}]", file=sys.stderr)
    if args.compile:
        from dartree.compiled import compiled_stack

        stack = compiled_stack(stack, args.compile, cuda_graphs=args.cuda_graphs)
    return stack
