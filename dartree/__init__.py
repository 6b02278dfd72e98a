"""dartree: learn, measure and extend tree-based speculative decoding (DARTree) on Qwen3."""

# ruff: noqa: F405
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dartree.names import *  # noqa: F403

__version__ = "0.1.0"

__all__ = [
    "METHODS",
    "Block",
    "CheckpointError",
    "Decoding",
    "DraftTree",
    "Generation",
    "GenerationError",
    "Proposal",
    "RoundRecord",
    "Stack",
    "Supertree",
    "TreeSettings",
    "add_method",
    "best_first",
    "corrected_logits",
    "custom_generate",
    "data_dir",
    "ddtree",
    "draft",
    "expand",
    "generate",
    "load_records",
    "load_stack",
    "save_records",
    "stream",
    "top_b",
    "verify",
]


def __getattr__(name: str) -> Any:
    # On demand: torch takes seconds to import, and a command answers to Ctrl-C from its start.
    if name in __all__:
        from importlib import import_module

        return getattr(import_module("dartree.names"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
