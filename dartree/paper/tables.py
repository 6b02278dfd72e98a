"""Tables from records: tau and speedup with paired bootstrap intervals, beside published numbers.

Two aggregates, which differ by a few per cent: *pooled* (all rounds, all tokens and seconds of a
data set together: token-weighted) and *per sample* (mean over answers). The paper's Table 1
gives tau per sample and speedups pooled.
"""

from __future__ import annotations

import csv
import io
import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dartree.checks import counted
from dartree.datasets import DATASETS
from dartree.methods import TABLE
from dartree.report_tables import number, settings_words, text_table
from dartree.settings import TreeSettings

AVERAGE = "average"
RESAMPLES = 2000
PAPER = TreeSettings()  # whose defaults are the paper's
PAPER_LENGTH = 2048  # new tokens
STATISTICS = ("tau", "tau_per_sample", "speedup", "speedup_per_sample")


@dataclass(frozen=True)
class Cell:
    """One method on one data set (or the mean of the sets), at one temperature.

    values, low, high [4]
        The statistics of STATISTICS and their 95 % intervals; NaN where there is none.
    replicates [R, 4]
        The same on R resamples of the prompts; resample i is the same for every method, so
        differences of replicates are paired.
    same_text
        Share of answers with the token ids of `ar`.
    drafter
        The checkpoints that drafted, as the records name them.
    sets
        Of a mean: the data sets that it is taken over.
    differs
        What was asked for otherwise than the paper did, of what the method uses; "" for nothing.
    """

    model: str
    temperature: float
    dataset: str
    method: str
    prompts: int
    values: np.ndarray
    replicates: np.ndarray
    same_text: float
    drafter: str = ""
    sets: tuple[str, ...] = ()
    differs: str = ""

    @property
    def low(self) -> np.ndarray:
        return _quantile(self.replicates, 0.025)

    @property
    def high(self) -> np.ndarray:
        return _quantile(self.replicates, 0.975)


def _quantile(replicates: np.ndarray, q: float) -> np.ndarray:
    """Quantile [4] over the replicates that exist; NaN where none does."""
    return np.array([
        np.quantile(column[np.isfinite(column)], q) if np.isfinite(column).any() else np.nan
        for column in replicates.T
    ])  # fmt: skip


def cells(
    records: Iterable[dict[str, Any]], resamples: int = RESAMPLES, seed: int = 0
) -> list[Cell]:
    """Cells of all models, temperatures, data sets and methods, and the means of the sets.

    Only prompts count whose answers are there for every method of the data set. A resample draws
    prompts with replacement; the turns of a conversation stay together.
    """
    groups: dict[tuple, dict[str, dict[str, dict[int, Any]]]] = {}
    for record in records:
        c = record["cell"]
        group = groups.setdefault((c["model"], c["temperature"], c["dataset"]), {})
        group.setdefault(record["method"], {}).setdefault(c["id"], {})[c["turn"]] = record
    found: list[Cell] = []
    for (model, temperature, dataset), methods in groups.items():
        ids = _complete(methods)
        if not ids or "ar" not in methods:
            continue
        # Every data set is resampled by itself, every method of it alike.
        draws = np.random.default_rng([seed, zlib.crc32(dataset.encode())])
        counts = draws.multinomial(len(ids), np.full(len(ids), 1 / len(ids)), size=resamples)
        for method, answers in methods.items():
            sums = np.array([_sums(answers[i], methods["ar"][i]) for i in ids])  # [N, 12]
            total = sums.sum(axis=0)
            found.append(
                Cell(model, temperature, dataset, method, len(ids), _statistics(total),
                     _statistics(counts @ sums), total[10] / total[11], _drafter(answers, ids),
                     differs=_differs(method, answers, ids))
            )  # fmt: skip
    return found + _averages(found)


def _drafter(answers: dict[str, dict[int, Any]], ids: list[str]) -> str:
    names = (record.get("drafter", "") for i in ids for record in answers[i].values())
    return " and ".join(dict.fromkeys(names))


def _differs(method: str, answers: dict[str, dict[int, Any]], ids: list[str]) -> str:
    uses = TABLE[method].uses if method in TABLE else ()
    paper = PAPER.to_dict()
    found = []
    for record in (record for i in ids for record in answers[i].values()):
        asked = record.get("asked", {})
        ours = {k: v for k, v in asked.get("settings", {}).items() if k in uses and v != paper[k]}
        length = asked.get("max_new_tokens", PAPER_LENGTH)
        limit = [f"up to {counted(length, 'new token')}"] if length != PAPER_LENGTH else []
        found.append(", ".join([*settings_words(ours), *limit]))
    return " or ".join(dict.fromkeys(filter(None, found)))


def _complete(methods: dict[str, dict[str, dict[int, Any]]]) -> list[str]:
    """Ids of the prompts that every method has answered, with the same number of turns."""
    every = [set(answers) for answers in methods.values()]
    shared = set.intersection(*every)
    turns = {i: max(len(answers.get(i, ())) for answers in methods.values()) for i in shared}
    return sorted(i for i in shared if all(len(a[i]) == turns[i] for a in methods.values()))


def _sums(ours: dict[int, Any], plain: dict[int, Any]) -> np.ndarray:
    """What the statistics need of one prompt [12]: sums over its turns."""
    sums = np.zeros(12)
    for turn, record in ours.items():
        ar = plain[turn]
        accepted, rounds = sum(record["accepted_per_round"]), record["rounds"]
        busy, tokens = _busy(record)
        ar_busy, ar_tokens = _busy(ar)
        timed = busy > 0 and ar_busy > 0 and tokens > 0 and ar_tokens > 0
        ratio = (tokens / busy) / (ar_tokens / ar_busy) if timed else 0.0
        sums += [
            accepted, rounds, accepted / rounds if rounds else 0.0, rounds > 0,
            busy, tokens, ar_busy, ar_tokens, ratio, timed,
            record["token_ids"] == ar["token_ids"], 1,
        ]  # fmt: skip
    return sums


def _busy(record: dict[str, Any]) -> tuple[float, int]:
    """Seconds and tokens of the rounds; the prefill and its token are left out."""
    seconds = record["seconds"]
    return seconds["total"] - seconds["prefill"], record["new_tokens"] - 1


def _statistics(sums: np.ndarray) -> np.ndarray:
    """STATISTICS [..., 4] from sums [..., 12]."""
    accepted, rounds, taus, drafted, busy, tokens, ar_busy, ar_tokens, ratios, timed, _, _ = (
        np.moveaxis(sums.astype(float), -1, 0)
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.stack(
            [accepted / rounds, taus / drafted, (tokens / busy) / (ar_tokens / ar_busy),
             ratios / timed], axis=-1,
        )  # fmt: skip


def _averages(found: Sequence[Cell]) -> list[Cell]:
    """The mean of each method, as the paper's last column, over the data sets that all have."""
    groups: dict[tuple, dict[str, dict[str, Cell]]] = {}
    for cell in found:
        methods = groups.setdefault((cell.model, cell.temperature), {})
        methods.setdefault(cell.method, {})[cell.dataset] = cell
    means = []
    for (model, temperature), methods in groups.items():
        sets = [
            name
            for name in next(iter(methods.values()))
            if all(name in m for m in methods.values())
        ]
        for method, cells_of in methods.items():
            group = [cells_of[name] for name in sets]
            if group:
                means.append(_mean(model, temperature, method, group))
    return means


def _mean(model: str, temperature: float, method: str, group: Sequence[Cell]) -> Cell:
    return Cell(
        model, temperature, AVERAGE, method, sum(c.prompts for c in group),
        np.mean([c.values for c in group], axis=0),
        np.mean([c.replicates for c in group], axis=0),
        float(np.mean([c.same_text for c in group])),
        " and ".join(dict.fromkeys(c.drafter for c in group)),
        tuple(c.dataset for c in group),
        " or ".join(dict.fromkeys(c.differs for c in group if c.differs)),
    )  # fmt: skip


Published = dict[tuple[str, float, str, str], dict[str, Any]]


def read_published(path: Path) -> Published:
    """(model, temperature, data set, method) -> {speedup, tau, source} of a file of
    ``data/published``; ValueError names a line that does not fit."""
    table: Published = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            try:
                where = (row["model"], float(row["temperature"]), row["dataset"], row["method"])
                table[where] = {
                    "speedup": float(row["speedup"]), "tau": float(row["tau"]),
                    "source": row["source"],
                }  # fmt: skip
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"{path} has a line that does not fit: {error!r}.") from None
    return table


COLUMNS = (
    "model", "temperature", "dataset", "method", "prompts",
    *(f"{name}{end}" for name in STATISTICS for end in ("", "_low", "_high")),
    "same_text", "published_tau", "tau_difference", "published_speedup", "speedup_difference",
    "source", "drafter", "differs",
)  # fmt: skip


def rows(found: Sequence[Cell], published: Published) -> list[dict[str, Any]]:
    """One dict a cell with the keys of COLUMNS; None where nothing was published.

    A published mean is that of the paper's seven data sets and stands beside no other mean.

    tau_difference is ours per sample less the published, speedup_difference ours pooled less
    the published.
    """
    out = []
    for cell in found:
        where = (cell.model, cell.temperature, cell.dataset, cell.method)
        other_mean = cell.dataset == AVERAGE and set(cell.sets) != set(DATASETS)
        theirs = {} if other_mean else published.get(where, {})
        row = dict.fromkeys(COLUMNS) | dict(
            zip(("model", "temperature", "dataset", "method"), where, strict=True)
        )
        row |= {"prompts": cell.prompts, "same_text": cell.same_text, "drafter": cell.drafter,
                "differs": cell.differs}  # fmt: skip
        for name, value, low, high in zip(
            STATISTICS, cell.values, cell.low, cell.high, strict=True
        ):
            row |= {name: _plain(value), f"{name}_low": _plain(low), f"{name}_high": _plain(high)}
        for ours, name in (("tau_per_sample", "tau"), ("speedup", "speedup")):
            row[f"published_{name}"] = theirs.get(name)
            if theirs and row[ours] is not None:
                row[f"{name}_difference"] = row[ours] - theirs[name]
        row["source"] = theirs.get("source")
        out.append(row)
    return out


def _plain(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def to_csv(table: Sequence[dict[str, Any]]) -> str:
    """All columns, numbers in full."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    return out.getvalue()


def format_tables(found: Sequence[Cell], published: Published) -> str:
    """The tables as text: one block for each model and temperature, then paired differences."""
    table = rows(found, published)
    blocks = []
    for model, temperature in dict.fromkeys((c.model, c.temperature) for c in found):
        inside = [r for r in table if (r["model"], r["temperature"]) == (model, temperature)]
        lines = [("data set", "method", "prompts", "tau", "tau per sample", "published",
                  "difference", "speedup", "per sample", "published", "difference",
                  "same text as ar")]  # fmt: skip
        for r in inside:
            lines.append(
                (r["dataset"], r["method"], str(r["prompts"]), _range(r, "tau"),
                 _range(r, "tau_per_sample"), number(r["published_tau"]),
                 _signed(r["tau_difference"]), _range(r, "speedup"),
                 _range(r, "speedup_per_sample"), number(r["published_speedup"]),
                 _signed(r["speedup_difference"]), f"{r['same_text']:.0%}")
            )  # fmt: skip
        here = [c for c in found if (c.model, c.temperature) == (model, temperature)]
        blocks.append(f"{model}, T = {temperature:g}\n\n{text_table(lines)}")
        blocks.append(_drafters(here))
        blocks.append(_other_settings(inside))
        blocks.append(_differences([c for c in found if c.model == model], temperature))
    sources = dict.fromkeys(row["source"] for row in table if row["source"])
    blocks.append(
        "tau: tokens committed per round, pooled over rounds (token-weighted), and the mean over "
        "answers. speedup: tokens/s\nagainst ar, pooled over tokens, and the mean over answers. "
        "[95 % interval of a paired bootstrap over prompts; of one prompt it has no width and says "
        "nothing].\naverage: mean of the data sets that every method has, beside the published one "
        "where they are the paper's seven.\nDifferences: ours less the published; tau per sample, "
        "speedup pooled.\n"
        f"published: {'; '.join(sources) or 'nothing for these models'}."
    )
    return "\n\n".join(block for block in blocks if block)


def _drafters(found: Sequence[Cell]) -> str:
    """Which checkpoint each method ran on."""
    groups: dict[str, list[str]] = defaultdict(list)
    for cell in found:
        if cell.method != "ar" and cell.method not in groups[cell.drafter]:
            groups[cell.drafter].append(cell.method)
    named = [
        f"{', '.join(methods)} on {drafter}"
        for drafter, methods in groups.items()
        if drafter and methods
    ]
    return f"drafters: {'; '.join(named)}." if named else ""


def _other_settings(table: Sequence[dict[str, Any]]) -> str:
    """Which methods stand beside numbers that were published for other settings."""
    groups: dict[str, list[str]] = defaultdict(list)
    for row in table:
        if row["source"] and row["differs"] and row["method"] not in groups[row["differs"]]:
            groups[row["differs"]].append(row["method"])
    if not groups:
        return ""
    paper = ", ".join(settings_words(PAPER.to_dict()))
    ours = "; ".join(f"{', '.join(methods)}: {words}" for words, methods in groups.items())
    return (
        f"published: with {paper} and up to {PAPER_LENGTH} new tokens, where the method uses them. "
        f"Other settings here, of which the differences tell as well: {ours}."
    )


def _differences(found: Sequence[Cell], temperature: float) -> str:
    """tau and speedup of `dartree` less every other method, on the same resamples."""
    mean = {c.method: c for c in found if c.dataset == AVERAGE and c.temperature == temperature}
    if "dartree" not in mean:
        return ""
    lines: list[tuple[str, ...]] = [("dartree less", "tau per sample", "speedup")]
    for method, other in mean.items():
        if method != "dartree":
            values = mean["dartree"].values - other.values
            spread = mean["dartree"].replicates - other.replicates
            low, high = _quantile(spread, 0.025), _quantile(spread, 0.975)
            lines.append(
                (method, *(f"{values[i]:+.2f} [{low[i]:+.2f}, {high[i]:+.2f}]" for i in (1, 2)))
            )
    return f"Paired differences, mean of the data sets\n\n{text_table(lines)}"


def _range(row: dict[str, Any], name: str) -> str:
    if row[name] is None:
        return "-"
    return f"{row[name]:.2f} [{row[f'{name}_low']:.2f}, {row[f'{name}_high']:.2f}]"


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.2f}"
