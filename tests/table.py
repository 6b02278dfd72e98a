"""A target without a network: next-token logits looked up by the last two tokens."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from dartree.stack import Pairing, Stack
from dartree.target import TargetOutput
from tests.reference import random_stack


class TableCache:
    """Committed tokens in place of keys and values."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.pending: list[int] = []

    @property
    def length(self) -> int:
        return len(self.tokens)

    def commit(self, rows: torch.Tensor) -> None:
        self.tokens += [self.pending[int(r)] for r in rows]


class TableTarget:
    """``logits`` [V, V, V]: row [a, b] holds the logits after tokens a, b."""

    def __init__(self, logits: torch.Tensor, taps: int, hidden: int) -> None:
        self.table = logits
        self.vocab_size = logits.shape[0]
        self.max_positions = 64
        self.device, self.dtype = torch.device("cpu"), torch.float64
        generator = torch.Generator().manual_seed(0)
        size = (self.vocab_size, hidden)
        self.embedding = torch.randn(size, generator=generator, dtype=torch.float64)
        self._features = torch.randn(
            self.vocab_size, taps * hidden, generator=generator, dtype=torch.float64
        )
        self.model = SimpleNamespace(generation_config=None)

    def without_taps(self) -> TableTarget:
        return self

    def new_cache(self, capacity: int) -> TableCache:
        return TableCache()

    def lm_head(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden @ self.embedding.T

    def prefill(self, cache: TableCache, ids: torch.Tensor) -> TargetOutput:
        cache.tokens += ids.tolist()
        return TargetOutput(self.table[cache.tokens[-2], cache.tokens[-1]][None], self._rows(ids))

    def _rows(self, ids: torch.Tensor) -> torch.Tensor:
        return self._features[ids]

    def verify(self, cache: TableCache, rows) -> TargetOutput:
        """The token before a row is read from mask and positions, as attention would."""
        ids, positions = rows.ids.tolist(), rows.positions.tolist()
        visible = torch.ones(1, 1, dtype=torch.bool)  # the anchor alone comes without a mask
        if rows.mask is not None:
            visible = rows.mask[0, 0, :, cache.length :] == 0
        logits = []
        for row, token in enumerate(ids):
            before = [
                ids[column]
                for column in range(len(ids))
                if visible[row, column] and positions[column] == positions[row] - 1
            ]
            logits.append(self.table[before[0] if before else cache.tokens[-1], token])
        cache.pending = ids
        return TargetOutput(torch.stack(logits), self._rows(rows.ids))


def table_stack(vocabulary: int = 4, seed: int = 0, block_size: int = 2) -> Stack:
    """A random table target and a random Domino drafter over the same few tokens."""
    from tests.reference import random_model

    model = random_model(seed, vocab_size=vocabulary)
    stack = random_stack(model=model, block_size=block_size)
    generator = torch.Generator().manual_seed(seed)
    logits = 1.5 * torch.randn(*[vocabulary] * 3, generator=generator, dtype=torch.float64)
    target = TableTarget(logits, taps=2, hidden=model.config.hidden_size)
    stack.main.head.attach(target.embedding)
    return Stack("table", Pairing(target, stack.main.drafter, stack.main.head, "table"))
