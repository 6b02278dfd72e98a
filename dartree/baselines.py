"""What speculative decoding is compared with: one-token decoding, three ways.

`ar` is a method of the package. Here are transformers' own `generate`, which papers divide by,
and `ar` on a compiled target with a static cache.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from dartree.decode import Decoding, Generation, generate
from dartree.packed import PackedLinear
from dartree.prompts import Prompt
from dartree.records import RoundRecord
from dartree.stack import Stack
from dartree.tree import DraftTree

HF_GENERATE, AR_COMPILED = "hf-generate", "ar-compiled"
BASELINES = (HF_GENERATE, "ar", AR_COMPILED)


class _Times:
    """A transformers streamer that notes when each token arrives."""

    def __init__(self) -> None:
        self.at: list[float] = []

    def put(self, value: torch.Tensor) -> None:
        self.at.append(time.perf_counter())  # the prompt first, then one call a token

    def end(self) -> None:
        """Nothing is held back."""


def hf_generate(stack: Stack, prompt: Prompt, *, max_new_tokens: int, **options: Any) -> Generation:
    """The prompt continued by ``model.generate`` of transformers: greedy, or sampled at T > 0.

    Options: temperature, top_p, top_k, min_p, seed, stop (ids only), raw; of the checkpoint's
    generation config only the stop ids count, as for the methods. The time to the first
    token counts as prefill. ``seed`` seeds torch's global generator for this call, since
    ``generate`` has no other; it is put back afterwards. The draws are those of `ar` with this
    seed: both draw once for each token, and from the same probabilities but for their rounding.
    """
    decoding = Decoding(stack, prompt, method="ar", max_new_tokens=max_new_tokens, **options)
    out, model = decoding.result, stack.target.model
    ids = stack.encode(prompt, options.get("raw", False))
    room = stack.target.max_positions - len(ids)
    stop = options.get("stop")
    stop = stack.stop_ids() if stop is None else stop
    sampling: dict[str, Any] = {"do_sample": False}
    if options.get("temperature"):
        sampling = {"do_sample": True, "temperature": options["temperature"], "top_k": 0}
        sampling |= {k: options[k] for k in ("top_p", "top_k", "min_p") if options.get(k)}
    times = _Times()
    every_gpu = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(every_gpu), _no_generation_config(model):
        torch.manual_seed(options.get("seed", 0))
        start = time.perf_counter()
        tokens = model.generate(
            torch.tensor([ids], device=stack.target.device),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long, device=stack.target.device),
            max_new_tokens=min(max_new_tokens, room), streamer=times, use_cache=True,
            eos_token_id=stop or None, pad_token_id=0, **sampling,
        )[0, len(ids) :].tolist()  # fmt: skip
        end = time.perf_counter()
    out.method = HF_GENERATE
    decoding._keep(tokens)  # for the reason that our loop would give
    # Of the model itself: a compiled stack does not use what it may have packed.
    out.packed = any(isinstance(module, PackedLinear) for module in model.modules())
    out.seconds["prefill"] = times.at[1] - start
    out.seconds["total"] = end - start
    out.seconds["verify"] = end - times.at[1]
    none = np.empty(0, dtype=np.int64)
    out.records = [
        RoundRecord(i, HF_GENERATE, a, len(ids) + i, DraftTree.empty(), none, none, [b])
        for i, (a, b) in enumerate(zip(tokens, tokens[1:], strict=False))
    ]
    out.text = stack.decode(tokens)
    return out


@contextmanager
def _no_generation_config(model: Any) -> Iterator[None]:
    """Without what the checkpoint's config would fill in, such as a top_p or a penalty."""
    own = model.generation_config
    model.generation_config = type(own)()
    try:
        yield
    finally:
        model.generation_config = own


def ar_compiled(compiled: Stack, prompt: Prompt, **options: Any) -> Generation:
    """`ar` on a stack of :func:`dartree.compiled.compiled_stack`."""
    out = generate(compiled, prompt, method="ar", **options)
    out.method = AR_COMPILED
    return out
