"""Tables against plain arithmetic on a few records; published numbers against themselves."""

from __future__ import annotations

import csv
import re
import statistics
from collections import defaultdict

import numpy as np
import pytest

import dartree
from dartree.datasets import DATASETS
from dartree.paper.grid import METHODS
from dartree.paper.tables import AVERAGE, cells, format_tables, read_published, rows, to_csv
from dartree.stack import data_dir

PUBLISHED = data_dir() / "published"


def record(method, dataset, number, accepted, seconds, turn=0, model="4B", temperature=0.0, ids=0):
    """A record with ``accepted`` tokens in each round, which took ``seconds`` in all."""
    return {
        "cell": {"model": model, "temperature": temperature, "dataset": dataset,
                 "id": f"{dataset}-{number}", "turn": turn},
        "method": method, "accepted_per_round": accepted, "rounds": len(accepted),
        "new_tokens": sum(accepted) + 1, "token_ids": [ids] * (sum(accepted) + 1),
        "seconds": {"prefill": 0.5, "total": 0.5 + seconds},
    }  # fmt: skip


# Two data sets; three prompts and one conversation. ar takes 0.1 s a token.
GRID = [
    ("gsm8k", 0, 0, [4, 4], 0.2), ("gsm8k", 1, 0, [1, 1, 1, 1], 0.4), ("gsm8k", 2, 0, [12], 0.1),
    ("mt-bench", 0, 0, [2, 2], 0.1), ("mt-bench", 0, 1, [6], 0.1),
]  # fmt: skip


def some_records():
    for dataset, number, turn, accepted, seconds in GRID:
        tokens = sum(accepted)
        yield record("ar", dataset, number, [1] * tokens, 0.1 * tokens, turn)
        yield record("dartree", dataset, number, accepted, seconds, turn, ids=number == 1)


def find(found, method, dataset):
    (cell,) = (c for c in found if (c.method, c.dataset) == (method, dataset))
    return cell


def test_both_aggregates_by_hand():
    found = cells(some_records())
    cell = find(found, "dartree", "gsm8k")
    tau, per_sample, speedup, ratio = cell.values
    assert tau == pytest.approx((8 + 4 + 12) / (2 + 4 + 1))
    assert per_sample == pytest.approx(statistics.fmean([4, 1, 12]))
    assert speedup == pytest.approx((24 / 0.7) / 10)
    assert ratio == pytest.approx(statistics.fmean([8 / 0.2, 4 / 0.4, 12 / 0.1]) / 10)
    assert cell.same_text == pytest.approx(2 / 3) and cell.prompts == 3
    other = find(found, "dartree", "mt-bench")
    assert other.prompts == 1 and other.values[0] == pytest.approx(10 / 3)
    assert other.values[1] == pytest.approx((2 + 6) / 2)
    mean = find(found, "dartree", AVERAGE)
    assert mean.values == pytest.approx((cell.values + other.values) / 2)
    assert find(found, "ar", "gsm8k").values == pytest.approx(np.ones(4))


def test_intervals_are_those_of_all_resamples():
    """Three prompts have 27 resamples: the bootstrap must have their quantiles and mean."""
    cell = find(cells(some_records(), resamples=20000), "dartree", "gsm8k")
    sums = {0: (8, 2), 1: (4, 4), 2: (12, 1)}
    every = []
    for a in sums:
        for b in sums:
            for c in sums:
                drawn = [sums[i] for i in (a, b, c)]
                every.append(sum(x for x, _ in drawn) / sum(y for _, y in drawn))
    assert cell.replicates[:, 0].mean() == pytest.approx(statistics.fmean(every), rel=0.03)
    assert cell.low[0] == pytest.approx(min(every)) and cell.high[0] == pytest.approx(max(every))


def test_pairing_removes_what_prompts_have_in_common():
    """A method that is one token a round better everywhere: the difference has no spread."""
    rng = np.random.default_rng(0)
    records = []
    for i, tau in enumerate(rng.integers(1, 9, size=40).tolist()):
        records.append(record("ar", "gsm8k", i, [1] * 12, 1.2))
        records.append(record("ddtree", "gsm8k", i, [tau] * 4, 0.3))
        records.append(record("dartree", "gsm8k", i, [tau + 1] * 4, 0.3))
    found = cells(records)
    better, worse = (find(found, m, "gsm8k") for m in ("dartree", "ddtree"))
    assert better.high[0] - better.low[0] > 0.5
    assert np.allclose(better.replicates[:, 0] - worse.replicates[:, 0], 1)
    text = format_tables(found, {})
    assert re.search(r"^ddtree +\+1\.00 \[\+1\.00, \+1\.00\]", text, re.MULTILINE)


def test_only_prompts_that_every_method_answered_count():
    records = list(some_records())
    short = records[:-1]  # the conversation's second answer is still missing
    assert {c.dataset for c in cells(short)} == {"gsm8k", AVERAGE}
    assert cells([r for r in records if r["method"] != "ar"]) == []
    assert cells([]) == []


def test_answers_without_a_round_do_not_divide_by_zero():
    records = [record(m, "gsm8k", 0, [], 0.0) for m in ("ar", "dartree")]
    found = cells(records)
    assert np.isnan(find(found, "dartree", "gsm8k").values).all()
    assert " - " in format_tables(found, {})
    assert "nan" not in to_csv(rows(found, {}))


def test_answers_without_a_round_have_no_tau_and_no_speed():
    """An answer of one token: the mean over answers is that over those with a round."""
    records = [record("ar", "gsm8k", 0, [1] * 8, 0.8), record("dartree", "gsm8k", 0, [4, 4], 0.2)]
    records += [record(m, "gsm8k", 1, [], 0.0) for m in ("ar", "dartree")]
    cell = find(cells(records), "dartree", "gsm8k")
    assert cell.values == pytest.approx([4, 4, 4, 4])
    assert (cell.prompts, cell.same_text) == (2, 1)


def test_published_numbers_and_differences_stand_beside_ours():
    published = read_published(PUBLISHED / "paper_table1.csv")
    found = cells(some_records())
    table = rows(found, published)
    row = next(r for r in table if r["method"] == "dartree" and r["dataset"] == "gsm8k")
    assert (row["published_tau"], row["published_speedup"]) == (12.97, 9.73)
    assert row["tau_difference"] == pytest.approx(row["tau_per_sample"] - 12.97)
    assert row["speedup_difference"] == pytest.approx(row["speedup"] - 9.73)
    assert "Table 1" in row["source"]
    text = format_tables(found, published)
    assert "12.97" in text and "9.73" in text and "arXiv 2608.13524v1, Table 1" in text
    back = list(csv.DictReader(to_csv(table).splitlines()))
    assert float(back[0]["tau"]) == table[0]["tau"] and len(back) == len(table)


def asked(method, number=0, length=2048, **settings):
    """A record of a run with ``settings`` in place of the paper's."""
    own = {"settings": dartree.TreeSettings(**settings).to_dict(), "max_new_tokens": length}
    return record(method, "gsm8k", number, [3, 3], 0.2) | {"asked": own}


def told(records, published=None):
    """The line on settings below the table; None without one."""
    published = published or read_published(PUBLISHED / "paper_table1.csv")
    lines = format_tables(cells(records), published).splitlines()
    return next((line for line in lines if "Other settings here" in line), None)


def test_settings_that_the_published_numbers_do_not_have_are_said():
    methods = ("ar", "dflash", "ddtree", "dartree")
    assert told([asked(m) for m in methods]) is None
    line = told([asked(m, width=4, budget=16, depth_penalty=0.5) for m in methods])
    assert "published: with W 12, K 64, B 64, depth penalty 0.2 and up to 2048 new tokens" in line
    want = "as well: ddtree: B 16; dartree: W 4, B 16, depth penalty 0.5."
    assert line.endswith(want)  # dflash uses none of them
    assert told([asked(m, width=4) for m in methods], published={(1, 2, 3, 4): {}}) is None
    line = told([asked(m, length=64, depth=3) for m in methods])
    assert line.endswith("dflash, ddtree, dartree: depth 3, up to 64 new tokens.")
    mixed = [asked(m, n, candidates=9 + n) for m in methods for n in range(2)]
    assert told(mixed).endswith("dartree: K 9 or K 10.")
    back = list(csv.DictReader(to_csv(rows(cells(mixed), {})).splitlines()))
    assert {(r["method"], r["differs"]) for r in back} == {
        ("ar", ""), ("dflash", ""), ("ddtree", ""), ("dartree", "K 9 or K 10"),
    }  # fmt: skip


def test_a_published_mean_stands_beside_the_mean_of_all_seven_sets_only():
    published = read_published(PUBLISHED / "paper_table1.csv")
    every = [record(m, d, 0, [3, 3], 0.2) for d in DATASETS for m in ("ar", "dartree")]

    def mean(records):
        (row,) = (
            r for r in rows(cells(records), published)
            if (r["dataset"], r["method"]) == (AVERAGE, "dartree")
        )  # fmt: skip
        return row

    assert (mean(every)["published_tau"], mean(every)["source"][:5]) == (9.81, "arXiv")
    more = [record(m, "mine", 0, [3, 3], 0.2) for m in ("ar", "dartree")]
    for records in (every[:2], every[:-2], every + more):
        row = mean(records)
        assert row["tau"] == 3 and row["tau_difference"] is None
        assert row["published_tau"] is row["published_speedup"] is row["source"] is None


def test_means_of_methods_are_over_the_same_sets():
    """A method that lacks a data set is not compared with the others' mean over more of them."""
    records = [record(m, "gsm8k", 0, [8], 0.2) for m in ("ar", "dartree")]
    records += [record(m, "alpaca", 0, [2], 0.2) for m in ("ar", "dartree", "ddtree")]
    found = cells(records)
    assert (
        find(found, "dartree", AVERAGE).values[0] == find(found, "ddtree", AVERAGE).values[0] == 2
    )
    apart = [r for r in records if r["method"] != "ar"]
    apart = [r for r in apart if (r["method"] == "ddtree") == (r["cell"]["dataset"] == "alpaca")]
    plain = [r for r in records if r["method"] == "ar"]
    assert not [c for c in cells(apart + plain) if c.dataset == AVERAGE]


def test_the_drafter_of_every_method_stands_under_the_table():
    labels = {"ar": "none", "dflash": "D, its marginals without the head", "dartree": "D"}
    records = [
        record(m, d, 0, [3, 3], 0.2) | {"drafter": label}
        for m, label in labels.items()
        for d in ("gsm8k", "alpaca")
    ]
    found = cells(records)
    text = format_tables(found, {})
    assert "drafters: dflash on D, its marginals without the head; dartree on D." in text
    back = list(csv.DictReader(to_csv(rows(found, {})).splitlines()))
    assert {(r["method"], r["drafter"]) for r in back} == set(labels.items())


@pytest.mark.parametrize(("name", "count"), [("paper_table1", 160), ("a100_reproduction", 48)])
def test_published_files_are_consistent(name, count):
    """The printed averages are the means of the printed columns, within rounding."""
    published = read_published(PUBLISHED / f"{name}.csv")
    assert len(published) == count
    groups = defaultdict(dict)
    for (model, temperature, dataset, method), cell in published.items():
        assert method in METHODS and dataset in (*DATASETS, AVERAGE) and cell["source"]
        assert model in ("4B", "8B") and temperature in (0.0, 1.0)
        groups[model, temperature, method][dataset] = cell
    for group in groups.values():
        assert len(group) == len(DATASETS) + 1
        for kind in ("speedup", "tau"):
            mean = statistics.fmean(group[d][kind] for d in DATASETS)
            assert abs(mean - group[AVERAGE][kind]) < 0.011


def test_bad_published_files(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("source,model,temperature,method,dataset,speedup,tau\na,4B,0,ar,gsm8k,fast,1\n")
    with pytest.raises(ValueError, match="x.csv has a line that does not fit"):
        read_published(path)
