"""What numbers were measured on: the machine, what else it did, and the versions of everything."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from typing import Any

import torch


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    info = {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": platform.system(),
    }
    if torch.cuda.is_available():
        info["gpu"] = torch.cuda.get_device_name()
    return info


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


class OtherJobs:
    """The cores that other processes keep busy, from when this is made on.

    By Linux's own count of processor time, which knows nothing of a job that waits.
    """

    LEAST = 0.2  # seconds; that count goes in steps of a hundredth

    def __init__(self) -> None:
        self._start = _processor_time()

    def cores(self) -> float | None:
        """Their mean number; None where the system does not say, and for less than LEAST."""
        now, start = _processor_time(), self._start
        if now is None or start is None or now[0] - start[0] < self.LEAST:
            return None
        seconds, all_busy, own = (b - a for a, b in zip(start, now, strict=True))
        if all_busy < own / 2:  # a sandbox that shows zeros
            return None
        return max(0.0, all_busy - own) / seconds

    def advice(self, threads: int) -> str | None:
        """What to do where they leave fewer cores than ``threads``, else None."""
        cores, busy = os.cpu_count() or 1, self.cores()
        if busy is None or threads < 2 or busy + threads < cores + 0.5:
            return None
        free = max(1, int(cores - busy))
        return (
            f"{busy_words(busy)}, and the {threads} threads of this one spin while they wait for "
            f"each other; --threads {free} or OMP_NUM_THREADS={free}"
        )


def busy_words(busy: float) -> str:
    """What :meth:`OtherJobs.cores` gave, in words."""
    return f"other jobs keep {busy:.1f} of {os.cpu_count()} cores busy"


def _processor_time() -> tuple[float, float, float] | None:
    """Seconds: a clock's, of all processes on all cores, of this one and those it waited for."""
    try:
        words = Path("/proc/stat").read_text().split(maxsplit=9)
        user, nice, system, _, _, interrupts, soft, stolen = map(int, words[1:9])
    except (OSError, ValueError):
        return None
    busy = (user + nice + system + interrupts + soft + stolen) / os.sysconf("SC_CLK_TCK")
    return time.perf_counter(), busy, sum(os.times()[:4])


def versions() -> dict[str, str]:
    """Versions of what the numbers depend on."""
    import numpy
    import transformers

    import dartree

    return {
        "dartree": dartree.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "numpy": numpy.__version__,
    }
