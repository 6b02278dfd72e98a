"""What this installation has, and what is missing."""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import time

MODULES = (
    "torch", "transformers", "tokenizers", "safetensors", "numpy", "matplotlib", "seaborn",
    "ipywidgets", "jupyterlab", "papermill", "tqdm",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``dartree doctor`` takes none."""


def run(args: argparse.Namespace) -> int:
    """Print the report; 1 where something is missing."""
    text, healthy = report()
    print(text)
    return 0 if healthy else 1


def report() -> tuple[str, bool]:
    """A readable report, and whether everything that the commands need is there."""
    lines, healthy = [f"python         {platform.python_version()} on {platform.platform()}"], True
    for name in MODULES:
        try:
            version = getattr(importlib.import_module(name), "__version__", "?")
        except ImportError as error:
            version, healthy = f"MISSING ({error})", False
        lines.append(f"{name:<14} {version}")
    try:
        lines += _hardware()
        from dartree.stack import bundled_stacks

        lines.append(f"bundled stacks {', '.join(bundled_stacks()) or 'none'}")
    except (ImportError, ValueError) as error:
        lines.append(f"bundled stacks MISSING ({error})")
        healthy = False
    return "\n".join(lines), healthy


def _hardware() -> list[str]:
    import torch

    from dartree.compiled import why_not
    from dartree.native import available
    from dartree.packed import reason
    from dartree.training.common import bf16_on_cpu

    lines = [
        f"cores          {os.cpu_count()}, torch uses {torch.get_num_threads()} threads",
        f"bf16 on CPU    {'in hardware' if bf16_on_cpu() else 'emulated only'}",
        f"packed weights {reason(torch.empty(0)) or 'in float32 on the CPU'}",
        f"fused steps    {available() or 'in float32 on the CPU'}",
        f"torch.compile  {why_not() or 'can be used'}",
        f"CUDA           {torch.cuda.get_device_name() if torch.cuda.is_available() else 'none'}",
    ]
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        lines.append(f"memory         {total / 2**30:.1f} GiB")
    return lines + _other_jobs(torch.get_num_threads())


def _other_jobs(threads: int) -> list[str]:
    """How busy others keep the machine; nothing where the system does not say."""
    from dartree.machine import OtherJobs, busy_words

    jobs = OtherJobs()
    time.sleep(2 * OtherJobs.LEAST)
    if (busy := jobs.cores()) is None:
        return []
    return [f"busy           {jobs.advice(threads) or busy_words(busy)}"]
