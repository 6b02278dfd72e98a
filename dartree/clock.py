"""Stage times of a round, with the device brought to rest at every boundary."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

STAGES = ("draft", "expand", "prune", "mask", "verify", "walk", "commit")


def synchroniser(device: torch.device | str) -> Callable[[], None]:
    """A function that waits until ``device`` has finished all queued work (nothing on CPU)."""
    if torch.device(device).type == "cuda":
        return lambda: torch.cuda.synchronize(device)
    return lambda: None


class Clock:
    """Adds up seconds by stage.

    Asynchronous devices return from a call before its work is done, so every boundary waits
    for the device first; otherwise a stage would be charged for the one before it.
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self._wait = synchroniser(device)
        self.seconds: dict[str, float] = dict.fromkeys(STAGES, 0.0)

    def now(self) -> float:
        """Seconds of a monotonic clock, read after the device has come to rest."""
        self._wait()
        return time.perf_counter()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Charge the enclosed work to stage ``name``; ValueError unless it is one of STAGES."""
        if name not in self.seconds:
            raise ValueError(f"stage must be one of {', '.join(STAGES)}, got {name!r}.")
        start = self.now()
        try:
            yield
        finally:
            self.seconds[name] += self.now() - start
