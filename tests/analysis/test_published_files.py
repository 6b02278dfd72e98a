"""Published numbers say what their README says of them."""

from __future__ import annotations

import csv
import statistics

from dartree.stack import data_dir


def test_how_far_a_run_elsewhere_lies_from_the_paper():
    """The last sentence of data/published/README.md."""

    def read(name):
        with (data_dir() / "published" / f"{name}.csv").open(encoding="utf-8") as file:
            keys = ("model", "temperature", "method", "dataset")
            return {tuple(row[k] for k in keys): row for row in csv.DictReader(file)}

    paper, elsewhere = read("paper_table1"), read("a100_reproduction")
    said = []
    for kind in ("tau", "speedup"):
        off = [
            abs(float(row[kind]) / float(paper[key][kind]) - 1) for key, row in elsewhere.items()
        ]
        said += [statistics.median(off), max(off)]
    text = " ".join((data_dir() / "published" / "README.md").read_text(encoding="utf-8").split())
    assert (
        f"tau differs by {said[0]:.1%} in the median and by {said[1]:.1%} at most, "
        f"the speedup by {said[2]:.0%} and {said[3]:.0%}."
    ).replace("%", " %") in text
