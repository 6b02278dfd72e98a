"""Results that repeat exactly, kept on disk and shared between notebooks.

Kept are the target's answers and the drafter's outputs, in the folder $DARTREE_CACHE, which
`dartree figures` sets; where it is unset everything is computed. A file is named by a hash of all
that its content depends on, weights, code and machine included, so a change of any of them makes
another file and none is ever stale. A file that does not hold what it claims is computed again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from dartree.files import replace_with
from dartree.machine import machine, versions
from dartree.stack import Pairing

MOST_BYTES = 2**29  # of all files together; the ones that were not read for longest go first
_OURS = re.compile(r"\.?[0-9a-f]{64}\.safetensors(\.\d+\.tmp)?")  # unfinished ones included

Tensors = dict[str, torch.Tensor]


def folder() -> Path | None:
    """$DARTREE_CACHE as a path; None where nothing is kept."""
    named = os.environ.get("DARTREE_CACHE")
    return Path(named) if named else None


def identity(pairing: Pairing) -> str | None:
    """Hash of what target and drafter of ``pairing`` compute with; None where nothing is kept.

    It covers the weights as they are in memory, the kinds of the layers that hold them (packed and
    compiled ones round otherwise), configurations, device, threads, the versions of everything and
    the sources of this package.
    """
    if folder() is None:
        return None
    target, drafter = pairing.target, pairing.drafter
    facts = [target.tap_ids, target.device, getattr(target.config, "_attn_implementation", "")]
    facts += [machine(), versions(), torch.get_float32_matmul_precision(), _sources()]
    facts += [torch.backends.cpu.get_cpu_capability(), drafter and drafter.config]
    facts += [type(part).__qualname__ for part in (target, drafter)]
    found = hashlib.sha256(f"{facts} {target.config.to_dict()}".encode())
    for module in filter(None, (target.model, drafter)):
        found.update(str([type(layer).__qualname__ for layer in module.modules()]).encode())
        found.update(_digest(module.state_dict()).encode())
    return found.hexdigest()


def keep(of: str | None, what: dict[str, Any], compute: Callable[[], Tensors]) -> Tensors:
    """``compute()``, or what an earlier call gave for the same ``of`` and ``what`` (JSON-able).

    ``of`` comes from :func:`identity`; with None nothing is kept. Kept tensors are on the CPU.
    """
    place = folder()
    if of is None or place is None:
        return compute()
    name = hashlib.sha256(json.dumps([of, what], sort_keys=True).encode()).hexdigest()
    path = place / f"{name}.safetensors"
    found = _read(path, name)
    if found is None:
        found = {key: value.detach().cpu().contiguous() for key, value in compute().items()}
        about = {"name": name, "sha256": _digest(found)}
        with suppress(OSError):  # a full disk costs time, not the result
            place.mkdir(parents=True, exist_ok=True)
            replace_with(path, lambda temporary: save_file(found, temporary, about))
            _forget(place)
    return found


def _read(path: Path, name: str) -> Tensors | None:
    """The tensors of a file that is whole and made for ``name``, else None."""
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            found = {key: file.get_tensor(key) for key in file.keys()}
        if (about.get("name"), about.get("sha256")) == (name, _digest(found)):
            os.utime(path)
            return found
    except (OSError, SafetensorError):
        pass
    return None


def _forget(place: Path) -> None:
    """Remove files of ours, those not used for longest first, until the rest is small enough."""
    ours = [(path.stat(), path) for path in place.iterdir() if _OURS.fullmatch(path.name)]
    total = sum(facts.st_size for facts, _ in ours)
    for facts, path in sorted(ours, key=lambda pair: pair[0].st_mtime_ns):
        if total <= MOST_BYTES:
            break
        path.unlink(missing_ok=True)
        total -= facts.st_size


def _digest(tensors: Tensors) -> str:
    """SHA-256 over names, dtypes, shapes and bytes, in the order of the names."""
    found = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        found.update(f"{name} {tensor.dtype} {list(tensor.shape)};".encode())
        found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


@lru_cache
def _sources() -> str:
    """SHA-256 of the package's sources and of those beside this module."""
    here, found = Path(__file__).resolve().parent, hashlib.sha256()
    for path in sorted([*here.parent.glob("*.py"), *here.parent.glob("*.c"), *here.glob("*.py")]):
        found.update(path.read_bytes())
    return found.hexdigest()
