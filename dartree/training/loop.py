"""The loop of every training run: two lanes, a schedule, a log, and a state that outlives a kill.

A step's samples are split into two halves. Each half is one lane: a Python thread with
single-threaded matrix products, which gives its own gradients. The halves are fixed and summed in
order, so the result does not depend on how many lanes run at the same time.
"""

from __future__ import annotations

import argparse
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import nn
from tqdm.auto import tqdm

from dartree.files import replace_with
from dartree.training.common import Log
from dartree.training.optimiser import Optimiser

HALVES = 2  # of a step's samples: fixed, so that the sums do not depend on how many lanes run
Gradients = list[torch.Tensor]


def add_run_arguments(parser: argparse.ArgumentParser, learning_rate: float) -> None:
    """The arguments that every training run has."""
    add = parser.add_argument
    add("--minutes", type=float, help="end after this time, with the schedules run to their end")
    add("--learning-rate", type=float, default=learning_rate, help="at the end of the warm-up")
    add("--threads", type=int, help="lanes of one thread each (default: as many as cores help)")
    add("--resume", action="store_true", help="go on from the last state")
    add("--save-seconds", type=float, default=60, help="time between two states")
    add("--log-every", type=int, default=20, help="steps between two lines of the log")


def sample_numbers(
    step: int, batch: int, count: int, shuffled: Callable[[int], Sequence[int] | Any]
) -> list[int]:
    """The `batch` of `count` samples of one step: a function of the step alone.

    One pass through the samples follows the other; `shuffled` gives the order of the pass with
    this number.
    """
    places = range(step * batch, (step + 1) * batch)
    orders = {turn: shuffled(turn) for turn in {place // count for place in places}}
    return [int(orders[place // count][place % count]) for place in places]


class Run(ABC):
    """One training run: its model, optimiser, progress and whatever else a kill must not lose.

    A kind of run says what a step is (`halves`, `lane`), what it measures (`measure`), when it is
    done (`done`), and which arguments a resumed run must share (`fixed`). ``args`` holds
    what `add_run_arguments` adds.
    """

    def __init__(
        self, args: argparse.Namespace, folder: Path, name: str, model: nn.Module, *,
        weight_decay: float, warmup: int, measure_every: int, lanes: int,
    ) -> None:  # fmt: skip
        self.args, self.folder, self.name, self.model = args, folder, name, model
        self.parameters = list(model.parameters())
        self.optimiser = Optimiser(model.named_parameters(), args.learning_rate, weight_decay)
        self.warmup, self.measure_every, self.lanes = warmup, measure_every, lanes
        self.step, self.seconds = 0, 0.0
        self.best: dict[str, Any] = {}
        self.state_file = folder / f"{name}-state.pt"

    @property
    @abstractmethod
    def done(self) -> float:
        """The share of the run that is done, by its length."""

    @abstractmethod
    def fixed(self) -> dict[str, Any]:
        """The arguments that must stay the same over a resumed run."""

    @abstractmethod
    def halves(self) -> tuple[list, Any]:
        """The samples of this step in halves, and what a lane must know of the whole step."""

    @abstractmethod
    def lane(self, half: Any, whole: Any) -> tuple[Gradients, dict[str, float]]:
        """Gradients of a half, and its part of loss, tokens and further values of a log row."""

    @abstractmethod
    def measure(self) -> dict[str, Any]:
        """Held-out values for a log row."""

    @abstractmethod
    def row(self, mean: dict[str, float]) -> dict[str, Any]:
        """What a row of the log holds besides loss, rate, speed and time."""

    @property
    def progress(self) -> float:
        """0..1 by length and, with --minutes, by time as well: whichever is further."""
        minutes = self.args.minutes
        return min(1.0, max(self.done, self.seconds / (60 * minutes) if minutes else 0.0))

    def save(self) -> None:
        """Writes the whole state in one rename."""
        state = {"fixed": self.fixed(), "model": self.model.state_dict(), "best": self.best,
                 "optimiser": self.optimiser.state_dict(), "step": self.step,
                 "seconds": self.seconds}  # fmt: skip
        replace_with(self.state_file, lambda temporary: torch.save(state, temporary))

    def resume(self) -> None:
        """Goes on from the saved state; says so where there is none.

        ValueError where that run was started with other arguments.
        """
        if not self.state_file.exists():
            print(f"{self.name}: nothing to resume, starting from step 0")
            return
        state, fixed = torch.load(self.state_file, weights_only=True), self.fixed()
        old = state["fixed"]
        changed = [f"{key} {old.get(key)} (now {value})" for key, value in fixed.items()
                   if old.get(key) != value]  # fmt: skip
        if changed:
            raise ValueError(f"--resume needs what the run was started with: {', '.join(changed)}")
        self.model.load_state_dict(state["model"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.step, self.seconds, self.best = state["step"], state["seconds"], state["best"]

    def one_step(self, pool: ThreadPoolExecutor) -> dict[str, float]:
        """One update; the values of its lanes, summed, and the learning rate "lr"."""
        halves, whole = self.halves()
        results = list(pool.map(lambda half: self._lane(half, whole), halves))
        for parameter, *grads in zip(self.parameters, *(g for g, _ in results), strict=True):
            parameter.grad = sum(grads)
        nn.utils.clip_grad_norm_(self.parameters, 1.0)
        rate = self.optimiser.step(self.step, self.progress, self.warmup, pool.map)
        self.step += 1
        values = [values for _, values in results]
        return {"lr": rate, **{key: sum(v[key] for v in values) for key in values[0]}}

    def _lane(self, half: Any, whole: Any) -> tuple[Gradients, dict[str, float]]:
        torch.set_num_threads(1)
        return self.lane(half, whole)

    def train(self) -> None:
        """Steps until the progress is 1, with log, progress bar and regular states."""
        args, saved = self.args, self.seconds
        log = Log(self.folder / f"{self.name}.jsonl", resume_at=self.step)
        bar = tqdm(total=100, unit="%", desc=self.name, mininterval=5,
                   bar_format="{desc}: {percentage:3.0f}%|{bar}| {postfix}")  # fmt: skip
        last = time.perf_counter()
        mean: dict[str, float] = {}
        with ThreadPoolExecutor(min(self.lanes, HALVES)) as pool, bar:
            while self.progress < 1:
                values = self.one_step(pool)
                done = self._clock(last)
                values["speed"], last = values.pop("tokens") / (done - last), done
                rate = values.pop("lr")
                mean = {k: 0.95 * mean[k] + 0.05 * v for k, v in values.items()} if mean else values
                self._show(bar, mean)
                final = self.progress >= 1
                measured = self.measure() if final or self.step % self.measure_every == 0 else {}
                if measured or self.step % args.log_every == 0:
                    log.write(step=self.step, seconds=round(self.seconds, 1),
                              loss=round(mean["loss"], 4), lr=rate, **self.row(mean),
                              tokens_per_second=round(mean["speed"]), **measured)  # fmt: skip
                    last = self._clock(last)
                if final or self.seconds - saved > args.save_seconds:
                    self.save()
                    saved = self.seconds

    def _clock(self, last: float) -> float:
        now = time.perf_counter()
        self.seconds += now - last
        return now

    def _show(self, bar: tqdm, mean: dict[str, float]) -> None:
        left = self.seconds * (1 - self.progress) / max(self.progress, 1e-9) / 60
        bar.n = 100 * self.progress
        bar.set_postfix_str(
            f"step {self.step}, {mean['speed']:,.0f} tokens/s, loss {mean['loss']:.3f}, "
            f"{left:.0f} min left",
            refresh=False,
        )
        bar.update(0)
