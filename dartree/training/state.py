"""What a kill must not lose: one file with weights, optimiser, random state and progress."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from dartree.training import common


def save_state(path: Path, fixed: dict, **parts: Any) -> None:
    """Writes `parts` and the arguments that a resumed run must share, in one rename."""
    state = {"fixed": fixed, **parts}
    common.write_atomically(path, lambda temporary: torch.save(state, temporary))


def load_state(path: Path, fixed: dict, run: str) -> dict | None:
    """The parts of `save_state`; None, with a line that says so, where there is nothing to resume.

    ValueError where the run was started with other arguments.
    """
    if not path.exists():
        print(f"{run}: nothing to resume, starting from step 0")
        return None
    state = torch.load(path, weights_only=True)
    old = state.pop("fixed")
    changed = [name for name in fixed if old.get(name) != fixed[name]]
    if changed:
        was = ", ".join(f"{name} {old.get(name)} (now {fixed[name]})" for name in changed)
        raise ValueError(f"--resume needs what the run was started with: {was}")
    return state
