"""Answers of the frozen target to training prompts: what the drafters learn from.

A drafter must imitate its target, so it is trained on the target's own text, half of it greedy
and half sampled. Only token ids are kept; features are recomputed in training.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dartree.files import write_atomically
from dartree.training.common import DOMAINS, by_domain, read_jsonl, write_arrays
from dartree.training.forward import BatchedTarget, answer

SHARD = 126  # answers a shard: one batch, the same number of every domain
LONGEST_PROMPT = 160  # tokens
MAX_NEW_TOKENS = 160
TEMPERATURES = (0.7, 1.0)  # a sampled answer's temperature is drawn from this range


@dataclass(frozen=True)
class Text:
    """A prompt and the target's answer: ids [T], of which ids[prompt:] is the answer."""

    ids: torch.Tensor
    prompt: int
    domain: str

    @property
    def supervised(self) -> torch.Tensor:
        """[T] bool: the answer's tokens."""
        return torch.arange(len(self.ids)) >= self.prompt


def fingerprint(folder: Path) -> str:
    """SHA-256 of the weights in ``folder``, which ties answers to the target that gave them."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def chat_prompts(rows: Iterator[dict], tokenizer: Any, count: int, seed: int) -> list[tuple]:
    """(domain, ids) of ``count`` prompts, the domains taking turns, each shuffled by ``seed``."""
    queues = []
    for domain, mine in by_domain(rows).items():
        texts = sorted({row["prompt"] for row in mine})
        random.Random(f"{seed}/{domain}").shuffle(texts)
        queues.append(_encoded(domain, texts, tokenizer))
    turns = itertools.chain.from_iterable(itertools.zip_longest(*queues))
    return list(itertools.islice((item for item in turns if item is not None), count))


def _encoded(domain: str, texts: list[str], tokenizer: Any) -> Iterator[tuple]:
    for text in texts:
        ids = encode_chat(tokenizer, text)
        if len(ids) <= LONGEST_PROMPT:
            yield domain, ids


def encode_chat(tokenizer: Any, prompt: str) -> list[int]:
    """Ids of one user turn up to where the answer starts, by the tokenizer's chat template."""
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
    )
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def answered(
    target: BatchedTarget, rows: Sequence[dict], prompts: list[list[int]], *, max_new_tokens: int,
    stop_ids: set[int],
) -> list[Text]:  # fmt: skip
    """The target's greedy answers to the rows' encoded prompts; those of one token are left out."""
    answers = answer(target, prompts, max_new_tokens=max_new_tokens, stop_ids=stop_ids)
    return [
        Text(torch.tensor(ids + new), len(ids), row["domain"])
        for row, ids, new in zip(rows, prompts, answers, strict=True)
        if len(new) > 1
    ]


def _make_shard(
    target: BatchedTarget, prompts: list[tuple], index: int, seed: int, stops: set[int]
) -> dict[str, np.ndarray]:
    """Answers to one batch of prompts; a function of its arguments alone."""
    rng = random.Random(f"{seed}/{index}")
    sampled = {domain: itertools.cycle((False, True)) for domain in DOMAINS}
    heat = [rng.uniform(*TEMPERATURES) if next(sampled[d]) else 0.0 for d, _ in prompts]
    answers = answer(
        target, [ids for _, ids in prompts], max_new_tokens=MAX_NEW_TOKENS, stop_ids=stops,
        temperatures=heat, generator=torch.Generator().manual_seed(rng.getrandbits(62)),
    )  # fmt: skip
    texts = [ids + new for (_, ids), new in zip(prompts, answers, strict=True)]
    return {
        "tokens": np.concatenate([np.asarray(t, dtype=np.int32) for t in texts]),
        "lengths": np.asarray([len(t) for t in texts], dtype=np.int32),
        "prompts": np.asarray([len(ids) for _, ids in prompts], dtype=np.int32),
        "domains": np.asarray([DOMAINS.index(d) for d, _ in prompts], dtype=np.int8),
        "temperatures": np.asarray(heat, dtype=np.float32),
    }


def regenerate(
    folder: Path, target: BatchedTarget, tokenizer: Any, *, answers: int, seed: int, lanes: int
) -> list[Path]:
    """Shards with at least ``answers`` answers below ``folder/regenerated``; old ones are kept.

    Each shard depends on its number and the seed alone and is written in one rename, so a run
    that was killed goes on with the shards that are missing. ValueError if the shards there
    were made by another target.
    """
    place = folder / "regenerated"
    _check_source(place, {"target": fingerprint(folder / "target"), "seed": seed})
    count = -(-answers // SHARD)
    paths = [place / f"shard-{i:05d}.npz" for i in range(count)]
    missing = [i for i, path in enumerate(paths) if not path.exists()]
    if not missing:
        return paths
    prompts = chat_prompts(
        read_jsonl(folder / "corpus" / "train.jsonl"), tokenizer, count * SHARD, seed
    )
    stops = {tokenizer.convert_tokens_to_ids("<|im_end|>")}

    def work(index: int) -> int:
        torch.set_num_threads(1)  # of this lane: two lanes run side by side
        batch = prompts[index * SHARD : (index + 1) * SHARD]
        if not batch:
            raise ValueError(f"answers is {answers}; the corpus has {len(prompts)} prompts")
        data = _make_shard(target, batch, index, seed, stops)
        write_arrays(paths[index], **data)
        return int(data["lengths"].sum() - data["prompts"].sum())

    _with_progress(work, missing, lanes)
    return paths


def _with_progress(work: Callable[[int], int], missing: list[int], lanes: int) -> None:
    from tqdm.auto import tqdm

    start, tokens = time.monotonic(), 0
    with ThreadPoolExecutor(lanes) as pool, tqdm(total=len(missing), unit="shard") as bar:
        bar.set_description("answers")
        for made in pool.map(work, missing):
            tokens += made
            bar.set_postfix_str(f"{tokens / (time.monotonic() - start):,.0f} tokens/s")
            bar.update()


def _check_source(place: Path, source: dict) -> None:
    path = place / "source.json"
    if path.exists():
        if json.loads(path.read_text(encoding="utf-8")) != source:
            raise ValueError(
                f"{place} holds answers of another target or seed; remove that folder to "
                "generate them again"
            )
        return
    place.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(source) + "\n")


def read_shards(paths: list[Path]) -> list[Text]:
    """All texts of ``paths``, in order; those without room for an anchor are left out."""
    texts = []
    for path in paths:
        with np.load(path) as data:
            parts = np.split(data["tokens"], np.cumsum(data["lengths"])[:-1])
            prompts, domains = data["prompts"].tolist(), data["domains"].tolist()
        for tokens, prompt, domain in zip(parts, prompts, domains, strict=True):
            if len(tokens) - prompt >= 2:
                ids = torch.from_numpy(tokens.astype(np.int64))
                texts.append(Text(ids, prompt, DOMAINS[domain]))
    return texts
