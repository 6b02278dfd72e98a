"""The one decode loop: draft, propose, verify, walk, commit.

All methods run through it; they differ only in their proposer.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch

from dartree.acceptance import Chooser, NonFiniteLogitsError, walk
from dartree.checks import counted, instance, positive_int
from dartree.clock import STAGES, Clock
from dartree.drafter import Block, DrafterCache
from dartree.methods import check_method, proposal_of, used_settings
from dartree.prompts import Prompt
from dartree.proposers import Proposal
from dartree.records import RoundRecord, missing_reason
from dartree.settings import TreeSettings
from dartree.stack import Pairing, Stack
from dartree.stopping import StopRule
from dartree.target import tree_rows
from dartree.tree import DraftTree


class GenerationError(ValueError):
    """Generation had to end early; ``partial`` is what had been committed until then."""

    def __init__(self, message: str, partial: Generation) -> None:
        super().__init__(message)
        self.partial = partial


SHOWN = 60  # characters of a text in the line that stands for a result


@dataclass
class Generation:
    """Result of one call of :func:`generate`.

    ``tau`` is the mean number of tokens committed per round (accepted drafts and the bonus
    token); the last round counts as a stop token or the length limit cut it. None without rounds.
    ``seconds`` holds the stages, ``prefill`` and ``total``. ``stop_reason`` is "stop", "length"
    (max_new_tokens), "context" (the model's limit), or "unfinished" where an error, an interrupt or
    the caller ended it early.
    """

    method: str
    stack: str
    drafter: str
    settings: dict[str, Any]
    prompt_tokens: int
    dtype: str
    device: str
    threads: int
    seed: int
    packed: bool = False  # weights in oneDNN's layout
    fused: bool = False  # the steps between the models as C functions
    lacks_head: bool = False  # the method would use a head, and the drafter has none
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    records: list[RoundRecord] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    stop_reason: str = "unfinished"

    def __repr__(self) -> str:
        """One line: thousands of numbers lie in the records."""
        tau = "-" if self.tau is None else f"{self.tau:.2f}"
        text = self.text if len(self.text) <= SHOWN else self.text[:SHOWN] + "…"
        return (
            f"Generation({self.method} on {self.stack}: {counted(self.new_tokens, 'token')} in "
            f"{counted(self.rounds, 'round')}, tau {tau}, ended by {self.stop_reason}, {text!r})"
        )

    @property
    def new_tokens(self) -> int:
        """Generated tokens, a stop token included."""
        return len(self.token_ids)

    @property
    def rounds(self) -> int:
        """Verification rounds; the prefill is none."""
        return len(self.records)

    @property
    def accepted_per_round(self) -> list[int]:
        """Tokens committed by each round; their sum + 1 is ``new_tokens``."""
        return [len(r.committed) for r in self.records]

    @property
    def tau(self) -> float | None:
        """Mean tokens committed per round, the last one cut where the text ends."""
        return sum(self.accepted_per_round) / self.rounds if self.rounds else None

    @property
    def head_calls(self) -> int:
        """Batched scoring steps of the head."""
        return sum(r.head_calls for r in self.records)

    @property
    def verified_nodes(self) -> int:
        """Sum of N over rounds; the target saw 1 + N rows in each."""
        return sum(len(r.tree) for r in self.records)

    @property
    def tokens_per_second(self) -> float | None:
        """(new_tokens - 1) / (total - prefill): the first token belongs to the prefill."""
        busy = self.seconds.get("total", 0.0) - self.seconds.get("prefill", 0.0)
        return (self.new_tokens - 1) / busy if self.records and busy > 0 else None

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of ``dartree generate --json``."""
        names = (
            "method", "stack", "drafter", "settings", "token_ids", "text", "prompt_tokens",
            "new_tokens", "rounds", "accepted_per_round", "tau", "head_calls", "verified_nodes",
            "seconds", "tokens_per_second", "stop_reason", "dtype", "device", "threads", "seed",
            "packed", "fused", "lacks_head",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names} | {"tau_per_prompt": self.tau}


class Decoding:
    """One generation in progress: iterate it for the rounds, read ``result`` at any time.

    method
        One of METHODS, or a name that was given to :func:`dartree.add_method`.
    settings
        Of the tree; None for the stack's own.
    max_new_tokens
        New tokens at most, a stop token included; the model's context may end it sooner.
    temperature
        0 is greedy decoding; above, every token is drawn from the target's distribution.
    top_p, top_k, min_p
        Filters of that distribution, as in transformers; None for none.
    seed
        Of the draws, 0..2**32 - 1; with one seed all methods write the same text.
    stop
        None for the stop ids of the generation config, [] for none, else ids and strings.
    raw
        Whether a text goes in as it is, without the chat template.

    A second loop over the same object goes on where the first one stopped. Raises ValueError for
    a bad argument and, while it is iterated, GenerationError for logits that are not finite.
    """

    def __init__(
        self,
        stack: Stack,
        prompt: Prompt,
        *,
        method: str = "dartree",
        settings: TreeSettings | None = None,
        max_new_tokens: int = 256,
        temperature: float = 0.0,
        top_p: float | None = None,
        top_k: int | None = None,
        min_p: float | None = None,
        seed: int = 0,
        stop: Sequence[int | str] | None = None,
        raw: bool = False,
    ) -> None:
        instance("stack", stack, Stack)
        check_method(method)
        self.settings = stack.chosen_settings(settings)
        max_new_tokens = positive_int("max_new_tokens", max_new_tokens)
        self._pairing = pairing = stack.pairing(method)
        target = pairing.target
        self._chooser = Chooser(temperature, top_p, top_k, min_p, seed, target.device)
        self._ids = stack.encode(prompt, raw)
        room = target.max_positions - len(self._ids)
        if room < 1:
            raise ValueError(
                f"prompt must be shorter than the model's context of {target.max_positions} "
                f"tokens, got {len(self._ids)}."
            )
        self._stop = StopRule(stack, stop, min(max_new_tokens, room), room <= max_new_tokens - 1)
        self._clock, self._done = Clock(target.device), False
        self._iterator = self._run()
        self.result = Generation(
            method=method,
            stack=stack.name,
            drafter=pairing.label,
            settings=used_settings(method, self.settings, pairing.drafts, target.vocab_size),
            prompt_tokens=len(self._ids),
            dtype=str(target.dtype).removeprefix("torch."),
            device=str(target.device),
            threads=torch.get_num_threads(),
            seed=int(seed),
            packed=stack.packed,
            fused=stack.fused,
            lacks_head=pairing.lacks_head,
            seconds=dict.fromkeys(("prefill", *STAGES, "total"), 0.0),
        )

    def __iter__(self) -> Iterator[RoundRecord]:
        """Decode round by round. The first token, from the prefill, belongs to no round."""
        return self._iterator

    def _run(self) -> Iterator[RoundRecord]:
        try:
            yield from self._rounds()
        finally:  # also after an error, an interrupt or an abandoned loop
            self.result.text = self.text()

    def text(self) -> str:
        """Text of what has been committed so far."""
        reason = self.result.stop_reason if self._done else None
        return self._stop.text(self.result.token_ids, reason)

    def _rounds(self) -> Iterator[RoundRecord]:
        target, out, start = self._pairing.target, self.result, time.perf_counter()
        rows = len(self._ids) + self._stop.limit + self.settings.budget + 32
        self._cache = target.new_cache(min(rows, len(self._ids) + 4096))
        if self._pairing.drafter is not None:
            self._context = self._pairing.drafter.new_cache()
        output = target.prefill(self._cache, torch.tensor(self._ids, device=target.device))
        self._features = output.features
        try:
            anchor = self._chooser.choose(output.logits[0])
        except NonFiniteLogitsError:
            raise GenerationError(
                "the target's logits are not finite after the prompt.", out
            ) from None
        out.seconds["prefill"] = out.seconds["total"] = self._clock.now() - start
        self._keep([anchor])
        while not self._done:
            start, clock = self._clock.now(), Clock(target.device)
            record, anchor = self._round(anchor, clock)
            elapsed = clock.now() - start
            record.seconds = clock.seconds
            record.committed = self._keep(record.committed)
            out.records.append(record)
            out.seconds["total"] += elapsed
            for name, value in clock.seconds.items():
                out.seconds[name] += value
            yield record

    @torch.inference_mode()
    def _round(self, anchor: int, clock: Clock) -> tuple[RoundRecord, int]:
        pairing, out = self._pairing, self.result
        target, past = pairing.target, self._cache.length
        proposal = Proposal(DraftTree.empty())
        depth_limit = 0
        if out.method != "ar":
            with clock.stage("draft"):
                self._context.absorb(self._features)
                block = draft_block(pairing, self._context, anchor)
            depth_limit = block.limits(self.settings).depth
            try:
                proposal = proposal_of(out.method, block, pairing.head, self.settings, clock)
            except ValueError as error:
                raise GenerationError(f"round {out.rounds}, {error}", out) from error
        with clock.stage("mask"):
            rows = tree_rows(target, proposal.tree, anchor, past)
        with clock.stage("verify"):
            output = target.verify(self._cache, rows)
        try:
            with clock.stage("walk"):
                verdict = walk(proposal.tree, output.logits, self._chooser)
        except NonFiniteLogitsError as error:
            message = f"the target's logits are not finite in round {out.rounds}, node {error.row}."
            raise GenerationError(message, out) from None
        with clock.stage("commit"):
            kept = torch.tensor([0, *verdict.path.tolist()], device=target.device)
            self._cache.commit(kept)
            self._features = output.features[kept]
        record = RoundRecord(
            index=out.rounds,
            method=out.method,
            anchor=anchor,
            position=past,
            tree=proposal.tree,
            target_tokens=verdict.target_tokens,
            path=verdict.path,
            committed=[*proposal.tree.tokens[verdict.path - 1].tolist(), verdict.next_anchor],
            missing=missing_reason(out.method, proposal, verdict, depth_limit),
            head_calls=proposal.head_calls,
            candidates=proposal.candidates,
            supertree=proposal.supertree,
            kept=proposal.kept,
        )
        return record, verdict.next_anchor

    def _keep(self, tokens: list[int]) -> list[int]:
        """Append ``tokens`` up to a stop or the limit; return what was kept."""
        kept, reason = self._stop.cut(self.result.token_ids, tokens)
        self.result.token_ids.extend(kept)
        if reason is not None:
            self._done, self.result.stop_reason = True, reason
        return kept


@torch.no_grad()
def draft_block(pairing: Pairing, context: DrafterCache, anchor: int) -> Block:
    """One drafter forward for ``anchor`` at the position after the absorbed context."""
    drafter, target = pairing.drafter, pairing.target
    ids = drafter.block_ids(anchor, target.device)
    embeddings = torch.nn.functional.embedding(ids, target.embedding)  # [1, L, H]
    hidden = context.forward_block(embeddings)[drafter.config.row_offset :]  # [n, H]
    return Block(anchor, context.length, hidden, target.lm_head(hidden))


Options = ParamSpec("Options")
Result = TypeVar("Result")


def _with_options_of(
    source: Callable[Concatenate[Stack, Prompt, Options], Any],
) -> Callable[[Callable[..., Result]], Callable[Concatenate[Stack, Any, Options], Result]]:
    """Show a function's ``**options`` as those of ``source``, to help(), editors and checkers."""

    def show(function: Callable[..., Result]) -> Callable[..., Result]:
        function.__signature__ = inspect.signature(source)  # type: ignore[attr-defined]
        return function

    return show


@_with_options_of(Decoding)
def generate(stack: Stack, prompt: Any, **options: Any) -> Any:
    """Generate text with one of the methods: a :class:`Generation`.

    The options are those of :class:`Decoding`, where each is explained.
    A list of prompts gives a list of results, one after the other, each exactly as alone.
    Raises ValueError for a bad argument and GenerationError, which carries the text committed so
    far, for logits that are not finite and for what a method, or a head, of your own returns or
    refuses wrongly (a ValueError in it); what else it raises comes as it is.
    """
    if is_batch(prompt):
        return [generate(stack, one, **options) for one in prompt]
    decoding = Decoding(stack, prompt, **options)
    for _ in decoding:
        pass
    return decoding.result


def is_batch(prompt: Any) -> bool:
    """Whether ``prompt`` is a list of prompts: of texts, of id lists or of conversations."""
    if not isinstance(prompt, (list, tuple)) or not prompt:
        return False
    first = prompt[0]
    return isinstance(first, str) or (isinstance(first, Sequence) and not isinstance(first, dict))


@_with_options_of(Decoding)
def stream(stack: Stack, prompt: Prompt, **options: Any) -> Iterator[str]:
    """Text pieces as rounds commit them; incomplete UTF-8 is held back.

    The options are those of :class:`Decoding`, as for :func:`generate`.
    """
    yield from stream_text(Decoding(stack, prompt, **options))


def stream_text(decoding: Decoding) -> Iterator[str]:
    """Text pieces of ``decoding``; together they are its ``result.text``."""
    sent = 0
    for _ in decoding:
        text = decoding.text()
        # U+FFFD at the end is most often a character whose last bytes are still to come.
        safe = len(text.rstrip("\ufffd"))
        if safe > sent:
            yield text[sent:safe]
            sent = safe
    if len(decoding.result.text) > sent:
        yield decoding.result.text[sent:]
