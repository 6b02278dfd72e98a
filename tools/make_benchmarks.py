"""Run the benchmarks of data/benchmarks/ and write their tables down: JSON files and README.md.

Usage: python tools/make_benchmarks.py [NAME ...]     (about 20 minutes on two cores)

Nothing else should run meanwhile. Every table stands below the command that made it; without
names all commands run, with names only these, and the other tables stay as they are.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from dartree.files import write_atomically

FOLDER = Path(__file__).resolve().parent.parent / "data" / "benchmarks"
BENCH = "dartree bench --limit 8"
THREE = "dartree bench --limit 8 --repeats 3 --methods dflash,ddtree,dartree"
HEADS = "dartree bench --limit 8 --repeats 3 --methods domino,ddtree,heap,dartree --no-compile"
SAMPLED = "dartree bench --limit 2 --repeats 1 --no-compile --temperature 1"
RUNS = {
    "paper": ("All methods at the paper's settings", f"{BENCH} --memory"),
    "tuned": ("Each method at its own settings", f"{BENCH} --tuned"),
    "tuned-24": ("Each method at its own settings, 24 prompts a domain", "dartree bench --limit 24 "
                 "--tuned --no-compile --methods dflash,ddtree,heap,dartree"),
    "eager": ("The paper's settings, the head eager", f"{HEADS} --no-fuse"),
    "head": ("The paper's settings, the head compiled", f"{HEADS} --compile head"),
    "plain": ("Weights not packed", f"{THREE} --no-pack"),
    "compiled": ("All models through torch.compile", f"{THREE} --tuned --compile"),
    **{f"sampled-{seed}": (f"T = 1, seed {seed}", f"{SAMPLED} --seed {seed}") for seed in range(3)},
    "sweeps": ("How the cost of a round grows", "dartree bench --limit 1 --repeats 3 "
               "--max-new-tokens 48 --sweep budget --sweep width --sweep candidates "
               "--sweep prefix --sweep threads"),
}  # fmt: skip
# What the tables cannot say of themselves.
NOTES = {
    "paper": "Building the tree (expand and prune) is to be read against `heap`. With 64 nodes and "
    "16 depths `heap` calls the head about four times as often, over one row in place of W. So "
    "four is the most that one batched call a depth can gain, and only where a call costs the same "
    "whatever its rows. Fused, a call with all that Python does around it costs about as much as "
    "a dozen rows of arithmetic, and both trees are built in a small part of a round: the "
    "milliseconds that are left to gain are few (with steps in PyTorch, below, they are more).",
    "tuned": "The settings are those of `dartree tune`, found on other prompts: the last eight of "
    "each domain, where these are the first eight (the stack's card has what was tried). The "
    "longer a verifying forward takes, the less of a round the head's calls are.",
    "tuned-24": "All prompts that no setting was tuned on. The first eight of a domain, which most "
    "other tables take, are easier than the next sixteen: compare tau and vs fastest with the "
    "table before.",
    "eager": "Steps in PyTorch, as on a machine without a C compiler: compare the column expand "
    "with the first table's. The models' stages show how far the machine itself drifted between.",
    "plain": "What the layout of weights for oneDNN gives, one-token loops included: the first "
    "table has the same methods with packed weights.",
    "sampled-0": "Six prompts, once, here and with the two seeds below: compare the three to see "
    "what a draw is worth. Methods cannot be ranked by them; the stack's card has T = 1 on 12 "
    "prompts a domain, with its spread.",
    "compiled": "Graphs use the plain weights: inductor packs none for oneDNN here. The seconds of "
    "compiling are with inductor's cache filled by earlier runs; the first time takes up to ten "
    "times as long.",
}


def run(name: str) -> None:
    """One command: its JSON beside its text, in the place of what was kept once all is there."""
    command = RUNS[name][1]
    print(command, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "result.json"
        line = [sys.executable, "-m", *shlex.split(command), "--json", str(file)]
        done = subprocess.run(line, stdout=subprocess.PIPE, text=True, check=True)
        found = json.loads(file.read_text(encoding="utf-8"))
    for result in found if isinstance(found, list) else [found]:
        for entry in result.get("methods", ()):
            for bulky in ("text", "token_ids", "seconds_per_run"):  # the command gives them again
                entry.pop(bulky, None)
    kept = {"command": command, "stdout": done.stdout, "result": found}
    text = json.dumps(kept, indent=1, ensure_ascii=False)
    write_atomically(FOLDER / f"{name}.json", text + "\n")


def page() -> str:
    """README.md from the JSON files that are there."""
    paths = {name: FOLDER / f"{name}.json" for name in RUNS}
    kept = {name: json.loads(p.read_text(encoding="utf-8")) for name, p in paths.items()
            if p.exists()}  # fmt: skip
    places = {name: _place(found["result"]) for name, found in kept.items()}
    usual = next(iter(places.values()))
    parts = [
        "# Benchmarks",
        "The latest tables, each below the command that prints it. Made by "
        f"`python tools/make_benchmarks.py` on an otherwise idle machine: {usual}.",
        "Read ratios, not single numbers: the speed of a shared machine moves by 20 % and more "
        "between minutes. Within a table methods are run in turn, prompt by prompt, so that a "
        "slow minute touches all of them; gaps under 15 % are ties.",
    ]
    for name, found in kept.items():
        place = "" if places[name] == usual else f"Made on {places[name]}."
        table = f"```\n$ {found['command']}\n\n{found['stdout'].strip()}\n```"
        parts += [f"## {RUNS[name][0]}", *filter(None, [NOTES.get(name), place]), table]
    return "\n\n".join(parts) + "\n"


def _place(result: Any) -> str:
    """The machine and the versions that a result was made with."""
    one = result[0] if isinstance(result, list) else result
    facts = one["machine"]
    used = ", ".join(f"{name} {version}" for name, version in one["versions"].items())
    return f"{facts['processor']}, {facts['cores']} cores, {facts['system']}; {used}"


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
