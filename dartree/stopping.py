"""When generation ends, and exactly where."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dartree.stack import Stack


class StopRule:
    """Stop ids, stop strings and the length limit.

    ``stop`` is None for the stop ids of the generation config, else a list of ids (int) and
    strings; [] never stops. ``limit`` is the number of new tokens that may be generated;
    ``limit_is_context`` tells whether the model's context set it.
    """

    def __init__(
        self,
        stack: Stack,
        stop: Sequence[int | str] | None,
        limit: int,
        limit_is_context: bool = False,
    ) -> None:
        self._stack, self.limit = stack, limit
        self._limit_reason = "context" if limit_is_context else "length"
        if stop is not None and (isinstance(stop, str) or not isinstance(stop, Iterable)):
            raise ValueError(f"stop must be a list of ids and strings, got {stop!r}.")
        entries = stack.stop_ids() if stop is None else list(stop)
        self._strings = [e for e in entries if isinstance(e, str)]
        ids = [e for e in entries if isinstance(e, int) and not isinstance(e, bool)]
        self._ids = set(ids)
        if len(self._strings) + len(ids) != len(entries):
            raise ValueError(f"stop must hold ids and strings, got {entries!r}.")
        if "" in self._strings:
            raise ValueError("stop must not hold an empty string.")
        top = stack.target.vocab_size - 1
        if stop is not None and any(not 0 <= i <= top for i in self._ids):
            raise ValueError(f"stop ids must lie in 0..{top}, got {sorted(self._ids)}.")
        if any(0xD800 <= ord(c) <= 0xDFFF for s in self._strings for c in s):
            raise ValueError("stop strings must be valid Unicode, got a lone surrogate.")
        if self._strings and stack.tokenizer is None:
            raise ValueError(f"stop strings need a tokenizer; stack {stack.name!r} has none.")

    def cut(self, before: list[int], tokens: list[int]) -> tuple[list[int], str | None]:
        """The part of ``tokens`` to keep after ``before``, and why generation ends, if it does.

        The token that stops is kept. A stop wins over the limit at the same token.
        """
        kept: list[int] = []
        for token in tokens:
            kept.append(token)
            if token in self._ids or self._string_end(before + kept) is not None:
                return kept, "stop"
            if len(before) + len(kept) == self.limit:
                return kept, self._limit_reason
        return kept, None

    def text(self, ids: list[int], reason: str | None) -> str:
        """Text of ``ids`` without special tokens, ending with a stop string that ended it."""
        text = self._stack.decode(ids)
        return text[: self._end_in(text)] if reason == "stop" else text

    def _end_in(self, text: str) -> int | None:
        """Where the first stop string of ``text`` ends; None where there is none."""
        return min((text.find(s) + len(s) for s in self._strings if s in text), default=None)

    def _string_end(self, ids: list[int]) -> int | None:
        """Where the first stop string ends in the text of ``ids``; None where there is none."""
        if not self._strings:
            return None
        # Every token holds at least one byte, so the tail covers any string ending here.
        tail = ids[-(max(len(s.encode("utf-8")) for s in self._strings) + 4) :]
        return self._end_in(self._stack.decode(tail, skip_special=False))
