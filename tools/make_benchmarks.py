"""Run the benchmarks of data/benchmarks/ and write their tables down: JSON files and README.md.

Usage: python tools/make_benchmarks.py [NAME ...]     (about a quarter of an hour on two cores)

Nothing else should run meanwhile. Every table stands below the command that made it; without
names all commands run, with names only these, and the other tables stay as they are.
"""

from __future__ import annotations

import json
import platform
import shlex
import subprocess
import sys
from pathlib import Path

from dartree.compare import machine, versions
from dartree.records import write_atomically

FOLDER = Path(__file__).resolve().parent.parent / "data" / "benchmarks"
BENCH = "dartree bench --limit 2"
RUNS = {
    "paper": ("All methods at the paper's settings", f"{BENCH} --memory"),
    "tuned": ("Each method at the settings that were fastest for it", f"{BENCH} --tuned"),
    "compiled": ("Targets through torch.compile", f"{BENCH} --repeats 3 --tuned --compile "
                 "--methods dflash,domino,ddtree,dartree"),
    "sampled-0": ("T = 1, seed 0", "dartree bench --limit 1 --repeats 1 --temperature 1 --seed 0"),
    "sampled-1": ("T = 1, seed 1", "dartree bench --limit 1 --repeats 1 --temperature 1 --seed 1"),
    "sampled-2": ("T = 1, seed 2", "dartree bench --limit 1 --repeats 1 --temperature 1 --seed 2"),
    "sweeps": ("How the cost of a round grows", "dartree bench --limit 1 --repeats 3 "
               "--max-new-tokens 48 --sweep budget --sweep width --sweep candidates "
               "--sweep prefix --sweep threads"),
}  # fmt: skip


def run(name: str) -> None:
    """One command: its JSON beside its text."""
    command = f"{RUNS[name][1]} --json {FOLDER / name}.json"
    print(command, flush=True)
    line = [sys.executable, "-m", *shlex.split(command)]
    done = subprocess.run(line, stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    for result in found if isinstance(found, list) else [found]:
        for entry in result.get("methods", ()):
            for bulky in ("text", "token_ids"):  # the prompts give them again
                entry.pop(bulky, None)
    kept = {"command": RUNS[name][1], "stdout": done.stdout, "result": found}
    text = json.dumps(kept, indent=1, ensure_ascii=False)
    write_atomically(FOLDER / f"{name}.json", text + "\n")


def page() -> str:
    """README.md from the JSON files that are there."""
    facts, used = machine(), versions()
    parts = [
        "# Benchmarks",
        "The latest tables, each below the command that prints it. Made by "
        "`python tools/make_benchmarks.py` on an otherwise idle machine: "
        f"{facts['processor']}, {facts['cores']} cores, {platform.system()}; "
        + ", ".join(f"{name} {version}" for name, version in used.items()) + ".",
        "Read ratios, not single numbers: the speed of a shared machine moves by 20 % and more "
        "between minutes. Within a table methods are run in turn, prompt by prompt, so that a "
        "slow minute touches all of them; gaps under 15 % are ties.",
    ]  # fmt: skip
    for name, (title, _) in RUNS.items():
        path = FOLDER / f"{name}.json"
        if path.exists():
            found = json.loads(path.read_text(encoding="utf-8"))
            parts.append(
                f"## {title}\n\n```\n$ {found['command']}\n\n{found['stdout'].strip()}\n```"
            )
    return "\n\n".join(parts) + "\n"


def main(names: list[str]) -> None:
    unknown = sorted(set(names) - set(RUNS))
    if unknown:
        sys.exit(f"NAME must be one of {', '.join(RUNS)}, got {unknown[0]!r}.")
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in names or RUNS:
        run(name)
    write_atomically(FOLDER / "README.md", page())


if __name__ == "__main__":
    main(sys.argv[1:])
