"""`dartree train corpus`: chat samples in three domains, and prompts that are held out of them.

A prompt is held out by a hash of its text, so no held-out prompt can be in the training part,
whatever the seed.  Functions of the standard library are held out by module instead.
"""

from __future__ import annotations

import argparse
import hashlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path

from dartree.training import arithmetic, code, prose
from dartree.training.common import DOMAINS, preset_folder, write_jsonl

HELD_OUT_SHARE = 24  # one prompt in 24
LIBRARY_SAMPLES = 1500
COUNTS = {"arithmetic": 40_000, "code": 32_000, "prose": 40_000}
GENERATORS: dict[str, Callable[[random.Random], tuple[str, str]]] = {
    "arithmetic": arithmetic.problem, "code": code.function, "prose": prose.passage,
}  # fmt: skip


def held_out(text: str) -> bool:
    """Whether this prompt (or name of a module) is kept out of training; a function of the text."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % HELD_OUT_SHARE == 0


def samples(domain: str, count: int, seed: int, held: bool) -> Iterator[dict[str, str]]:
    """`count` generated samples of the training part or, with `held`, of the held-out part."""
    rng = random.Random(f"{seed}/{domain}/{held}")
    made, seen = 0, set()
    while made < count:
        prompt, answer = GENERATORS[domain](rng)
        if held_out(prompt) is not held or (held and prompt in seen):
            continue
        seen.add(prompt)
        part = "held" if held else "train"
        yield {"id": f"{domain}-{part}-{made:05d}", "domain": domain, "prompt": prompt,
               "answer": answer}  # fmt: skip
        made += 1


def library_samples(count: int, seed: int) -> Iterator[dict[str, str]]:
    """Up to `count` functions of the standard library, from modules that are not held out."""
    found = [(prompt, answer) for module, prompt, answer in code.library_functions()
             if not held_out(module) and not held_out(prompt)]  # fmt: skip
    if not found:
        print("corpus: the standard library has no sources here; its functions are left out")
    random.Random(seed).shuffle(found)
    for i, (prompt, answer) in enumerate(found[:count]):
        yield {"id": f"library-{i:05d}", "domain": "code", "prompt": prompt, "answer": answer}


def build(folder: Path, counts: dict[str, int], library: int, held: int, seed: int) -> None:
    """Writes corpus/train.jsonl, corpus/held.jsonl and prompts/<domain>.jsonl under `folder`."""
    rows = [row for domain in DOMAINS for row in samples(domain, counts[domain], seed, held=False)]
    rows += library_samples(library, seed)
    random.Random(seed).shuffle(rows)
    write_jsonl(folder / "corpus" / "train.jsonl", rows)
    kept = {domain: list(samples(domain, held, seed, held=True)) for domain in DOMAINS}
    write_jsonl(folder / "corpus" / "held.jsonl", [row for d in DOMAINS for row in kept[d]])
    size = sum(len(row["prompt"]) + len(row["answer"]) for row in rows)
    print(f"corpus: {len(rows)} samples, {size / 1e6:.1f} MB, in {folder / 'corpus'}")


def write_prompts(folder: Path, seed: int, count: int = 32) -> None:
    """<domain>.jsonl in `folder`: the first `count` held-out prompts of each domain."""
    for domain in DOMAINS:
        rows = list(samples(domain, count, seed, held=True))
        prompts = [{"id": f"{domain}-{i:02d}", "domain": domain, "prompt": row["prompt"]}
                   for i, row in enumerate(rows)]  # fmt: skip
        write_jsonl(folder / f"{domain}.jsonl", prompts)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--scale", type=float, default=1.0, help="size of the corpus (default 1)")
    parser.add_argument("--held", type=int, default=128, help="held-out samples a domain")
    parser.add_argument("--prompts", type=Path, help="where the held-out prompts go "
                        "(default: prompts/ beside the corpus)")  # fmt: skip


def run(args: argparse.Namespace) -> None:
    if args.scale <= 0:
        raise ValueError(f"scale is {args.scale}; it must be above 0")
    folder = preset_folder(args.preset, args.out)
    counts = {domain: max(1, int(n * args.scale)) for domain, n in COUNTS.items()}
    build(folder, counts, int(LIBRARY_SAMPLES * args.scale), args.held, args.seed)
    write_prompts(args.prompts or folder / "prompts", args.seed)
