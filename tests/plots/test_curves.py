"""Stage bars and sweeps: the numbers of the result are the ones in the picture."""

from __future__ import annotations

import matplotlib
import matplotlib.pyplot as plt
import pytest

from dartree import plots
from dartree.clock import STAGES
from dartree.plots.curves import KNEE, STAGE_LOOKS

matplotlib.use("agg")


def entry(method: str, scale: float, tau: float) -> dict:
    stages = {stage: scale * (i + 1) for i, stage in enumerate(STAGES)}
    return {"method": method, "rounds": 3, "tau": tau, "stage_ms": stages,
            "ms_per_round": sum(stages.values()) * 1.02}  # fmt: skip


def sweep() -> dict:
    rows = []
    for value, ms in ((1, 8.0), (16, 9.0), (64, 16.0)):
        for method, factor in (("heap", 1.5), ("dartree", 1.0)):
            rows.append(
                {
                    "value": value,
                    "method": method,
                    "stage_ms": {"verify": ms / 2},
                    "ms_per_round": [factor * ms, factor * ms - 0.5, factor * ms + 0.5],
                }
            )
    return {"parameter": "budget", "rows": rows}


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def test_stage_bars_have_the_stages_lengths_and_looks():
    entries = [entry("ar", 0.1, 1.0), entry("dartree", 0.3, 7.0), entry("hf-generate", 0.2, 1.0)]
    fig, ax = plt.subplots()
    assert plots.draw_stages(ax, {"methods": entries}) is ax
    widths = [bar.get_width() for bar in ax.patches]
    want = [e["stage_ms"][s] for e in entries for s in STAGES]
    assert widths == pytest.approx(want)
    assert {tuple(STAGE_LOOKS)} == {STAGES}
    assert len({(look.color, look.hatch) for look in STAGE_LOOKS.values()}) == len(STAGES)
    texts = [t.get_text() for t in ax.texts]
    assert any("tau 7.00" in text for text in texts)


def test_building_is_expand_and_prune_by_method_and_head():
    eager, fused = sweep(), sweep()
    for i, row in enumerate((*eager["rows"], *fused["rows"])):
        row["stage_ms"] = {"expand": i + 0.5, "prune": 0.25}
    fig, ax = plt.subplots()
    assert plots.draw_build(ax, {"eager": eager, "fused": fused}) is ax
    lines = {line.get_label(): line for line in ax.lines}
    assert lines["heap, eager"].get_ydata() == pytest.approx([0.75, 2.75, 4.75])
    assert lines["dartree, fused"].get_ydata() == pytest.approx([7.75, 9.75, 11.75])
    assert lines["heap, fused"].get_linestyle() == "-" != lines["heap, eager"].get_linestyle()
    assert lines["heap, fused"].get_color() != lines["dartree, fused"].get_color()


def test_sweeps_are_drawn_by_method_and_the_knee_is_the_last_cheap_value():
    result = sweep()
    fig, ax = plt.subplots()
    plots.draw_sweep(ax, result, share="verify")
    lines = {line.get_label(): line.get_ydata().tolist() for line in ax.lines}
    assert lines["dartree"] == [8.0, 9.0, 16.0] and lines["heap: verify"] == [4.0, 4.5, 8.0]
    assert 9.0 <= KNEE * 8.0 < 16.0 and plots.knee(result) == 16
    plots.mark(ax, 16, "knee")
    assert ax.texts[-1].get_text() == "knee"


def test_baselines_have_a_look_of_their_own():
    looks = [
        plots.method_look(name) for name in (*plots.METHOD_LOOKS, "hf-generate", "ar-compiled")
    ]
    assert len({(look.color, look.marker) for look in looks}) == len(looks)
