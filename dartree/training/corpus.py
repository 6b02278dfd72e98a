"""`dartree train corpus`: chat samples in three domains, and prompts that are held out of them.

A prompt is held out by a hash of its text, so no held-out prompt can be in the training part,
whatever the seed; of the held-out ones only those are kept that share no long run of words with
the training text.  Functions of the standard library are held out by module instead.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from dartree.training import arithmetic, code, library, prose
from dartree.training.common import DOMAINS, preset_folder, write_jsonl

HELD_OUT_SHARE = 24  # one prompt in 24
LONGEST_SHARED = 15  # words in a row that a held-out prompt may share with the training text
COUNTS = {"arithmetic": 26_000, "code": 26_000, "prose": 26_000}
LIBRARY = (("function", "code", library.functions), ("note", "prose", library.notes))
SYSTEM_SHARE = 0.1  # training samples with a system turn, which asks for nothing new
SYSTEM = (
    "You are a helpful assistant.", "You answer briefly and exactly.", "Be kind and clear.",
    "You help students with arithmetic, Python and short texts.",
)  # fmt: skip
GENERATORS: dict[str, Callable[[random.Random], tuple[str, str]]] = {
    "arithmetic": arithmetic.problem, "code": code.sample, "prose": prose.passage,
}  # fmt: skip
# Held-out prompts are for comparing methods. They leave out what follows from its request word by
# word (classes, stories, letters), where every method reaches the end of the block, and ask less
# for facts, where none gets far.
TELLING = {**GENERATORS, "code": code.telling_sample, "prose": prose.telling_passage}


def held_out(text: str) -> bool:
    """Whether this prompt (or name of a module) is kept out of training; a function of the text."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % HELD_OUT_SHARE == 0


def samples(domain: str, count: int, seed: int, held: bool) -> Iterator[dict[str, str]]:
    """`count` generated samples of the training part or, with `held`, of the held-out part."""
    rng = random.Random(f"{seed}/{domain}/{held}")
    made, seen = 0, set()
    while made < count:
        prompt, answer = (TELLING if held else GENERATORS)[domain](rng)
        if held_out(prompt) is not held or (held and prompt in seen):
            continue
        seen.add(prompt)
        part = "held" if held else "train"
        yield {"id": f"{domain}-{part}-{made:05d}", "domain": domain, "prompt": prompt,
               "answer": answer}  # fmt: skip
        made += 1


def library_samples(share: float, seed: int) -> Iterator[dict[str, str]]:
    """A share of the library's functions and notes, from modules that are not held out."""
    for kind, domain, read in LIBRARY:
        found = [(prompt, answer) for module, prompt, answer in read()
                 if not held_out(module) and not held_out(prompt)]  # fmt: skip
        if not found:
            print(f"corpus: the standard library has no sources here; its {kind}s are left out")
        random.Random(f"{seed}/{kind}").shuffle(found)
        for i, (prompt, answer) in enumerate(found[: math.ceil(share * len(found))]):
            yield {"id": f"{kind}-{i:05d}", "domain": domain, "prompt": prompt, "answer": answer}


def phrases(text: str, length: int = LONGEST_SHARED + 1) -> Iterator[tuple[str, ...]]:
    """All sequences of `length` words of a text."""
    words = text.split()
    return (tuple(words[i : i + length]) for i in range(len(words) - length + 1))


def unlike(held: list[dict], rows: Iterable[dict]) -> list[dict]:
    """The held-out samples that share at most LONGEST_SHARED words in a row with `rows`."""
    owners: dict[tuple[str, ...], set[int]] = {}
    for i, row in enumerate(held):
        for phrase in phrases(row["prompt"]):
            owners.setdefault(phrase, set()).add(i)
    found: set[int] = set()
    for row in rows:
        for text in (row["prompt"], row["answer"]):
            for phrase in phrases(text):
                found |= owners.get(phrase, set())
    return [row for i, row in enumerate(held) if i not in found]


def build(folder: Path, counts: dict[str, int], library: float, held: int, seed: int) -> list[dict]:
    """Writes corpus/train.jsonl and corpus/held.jsonl under `folder`; returns the latter's rows.

    `counts`: generated samples a domain; `library`: share of the standard library's samples;
    `held`: held-out samples a domain.
    """
    kept = []
    rows = [row for domain in DOMAINS for row in samples(domain, counts[domain], seed, held=False)]
    for domain in DOMAINS:
        spare = list(samples(domain, 3 * held, seed, held=True))
        chosen = unlike(spare, rows)[:held]
        kept += [{**row, "id": f"{domain}-held-{i:05d}"} for i, row in enumerate(chosen)]
    if library:
        rows += library_samples(library, seed)
    rng = random.Random(seed)
    rng.shuffle(rows)
    for row in rows:
        if rng.random() < SYSTEM_SHARE:
            row["system"] = rng.choice(SYSTEM)
    write_jsonl(folder / "corpus" / "train.jsonl", rows)
    write_jsonl(folder / "corpus" / "held.jsonl", kept)
    size = sum(len(row["prompt"]) + len(row["answer"]) for row in rows)
    print(f"corpus: {len(rows)} samples, {size / 1e6:.1f} MB, in {folder / 'corpus'}")
    return kept


def write_prompts(folder: Path, held: list[dict], count: int = 32) -> None:
    """<domain>.jsonl in `folder`: the first `count` held-out prompts of each domain."""
    for domain in DOMAINS:
        rows = [row for row in held if row["domain"] == domain][:count]
        prompts = [{"id": f"{domain}-{i:02d}", "domain": domain, "prompt": row["prompt"]}
                   for i, row in enumerate(rows)]  # fmt: skip
        write_jsonl(folder / f"{domain}.jsonl", prompts)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--scale", type=float, default=1.0, help="size of the corpus (default 1)")
    parser.add_argument("--held", type=int, default=128, help="held-out samples a domain")
    parser.add_argument("--prompts", type=Path, help="where the held-out prompts go "
                        "(default: prompts/ beside the corpus)")  # fmt: skip


def run(args: argparse.Namespace) -> None:
    if not 0 < args.scale < math.inf:
        raise ValueError(f"scale must be a finite number above 0, got {args.scale}.")
    if args.held < 0:
        raise ValueError(f"held must be at least 0, got {args.held}.")
    folder = preset_folder(args.preset, args.out)
    counts = {domain: max(1, int(n * args.scale)) for domain, n in COUNTS.items()}
    held = build(folder, counts, min(1.0, args.scale), args.held, args.seed)
    write_prompts(args.prompts or folder / "prompts", held)
