"""The controls: the last value counts, observers are built once, errors are sentences."""

import asyncio
import selectors
from dataclasses import replace

import ipywidgets
import matplotlib.pyplot as plt
import pytest

import dartree
from dartree import widgets
from dartree.analysis.cost import RoundCost
from dartree.settings import TreeSettings
from dartree.widgets import whatif
from dartree.widgets.controls import Latest, Message, TreeControls
from tests.reference import random_stack

COSTS = RoundCost(5, 97, 1.0, (0.5, 0.02, 0.0), (1, 200), (5.0, 50.0), 0.0)
SETTINGS = TreeSettings(width=4, candidates=8, budget=9, depth_penalty=0.1)
OPTIONS = {"prompt": [5, 17, 3], "settings": SETTINGS, "max_new_tokens": 12}


@pytest.fixture(scope="module")
def stack():
    return random_stack()


@pytest.fixture
def explorer(stack):
    return widgets.explore(stack, costs=COSTS, **OPTIONS)


class Clock(selectors.SelectSelector):
    """A selector that skips what it should wait for: its time passes without any waiting."""

    now = 0.0

    def select(self, timeout=None):
        self.now += timeout or 0.0
        return super().select(0)


def simulate(main):
    """Run ``main`` in asyncio's own loop, in a time of its own: a busy machine changes nothing."""
    loop = asyncio.SelectorEventLoop(clock := Clock())
    loop.time = lambda: clock.now
    try:
        loop.run_until_complete(main())
    finally:
        loop.close()


def test_without_a_loop_work_is_done_at_once():
    done = []
    Latest(lambda: done.append(1)).request()
    assert done == [1]


def test_only_the_last_of_a_burst_is_worked_on():
    value, done = 0, []

    async def drag():
        nonlocal value
        latest = Latest(lambda: done.append(value))
        for value in range(200):
            latest.request()
            if value % 50 == 0:
                await asyncio.sleep(0)
        await asyncio.sleep(0.2)

    simulate(drag)
    assert done == [199]


def test_a_newer_request_ends_slow_work():
    value, done = 0, []

    def work():
        mine = value
        for step in range(1000 if mine == 0 else 3):
            done.append((mine, step))
            yield

    async def change():
        nonlocal value
        latest = Latest(work)
        latest.request()
        await asyncio.sleep(0.15)
        value = 1
        latest.request()
        await asyncio.sleep(0.3)

    simulate(change)
    assert done[-3:] == [(1, 0), (1, 1), (1, 2)]
    assert 0 < sum(mine == 0 for mine, _ in done) < 1000


def test_a_request_during_work_is_not_lost():
    done = []

    async def run():
        latest = Latest(lambda: (done.append(1), len(done) == 1 and latest.request())[:0])
        latest.request()
        await asyncio.sleep(0.2)

    simulate(run)
    assert done == [1, 1]


def test_messages_are_sentences():
    message = Message()
    with message.errors():
        raise ValueError("budget must be <at least> 1.")
    assert 'role="alert"' in message.value and "&lt;at least&gt;" in message.value
    with message.errors():
        raise RuntimeError("first\nsecond")
    assert "RuntimeError: first" in message.value and "second" not in message.value
    message.say([])
    assert message.value == ""


def test_sliders_hold_any_settings():
    odd = TreeSettings(width=50, candidates=300, budget=1000, depth_penalty=3.0, depth=4)
    assert TreeControls(odd, 4096).settings() == odd
    assert TreeControls(odd, 97).settings().candidates == 97


def test_moves_redraw_and_count(explorer):
    shown = explorer.picture.value
    explorer.tree.budget.value = 3
    assert explorer.picture.value != shown and explorer.calls.value.count("<b>+0</b>") == 3
    assert len(explorer.view.record.tree) == 3
    explorer.tree.width.value = 2
    assert "head calls: <b>+6</b>" in explorer.calls.value
    explorer.method.value = "ddtree"
    assert [control.disabled for control in explorer.tree.all] == [True, True, False, True]
    assert "does not use W" in explorer.notes.value
    explorer.method.value = "dartree"
    assert not any(control.disabled for control in explorer.tree.all)
    explorer.round.value = explorer.round.max
    assert explorer.view.record.index == explorer.round.max == explorer.view.rounds - 1


def test_temperature_and_seed_ask_for_other_texts(explorer):
    def text():
        choice = explorer.view.choice
        return explorer.session.text(choice.prompt, choice.temperature, choice.seed).ids

    greedy = text()
    explorer.temperature.value = 1.0
    first = text()
    explorer.seed.value = 7
    assert greedy != first != text() and explorer.message.value == ""


def test_round_times_are_measured_on_request(stack, monkeypatch):
    explorer, asked = widgets.explore(stack, **OPTIONS), []
    monkeypatch.setattr(
        "dartree.widgets.explorer.measure_briefly", lambda *given: asked.append(given) or COSTS
    )
    assert "not measured yet" in explorer.numbers.value and explorer.measure.layout.display == ""
    explorer.measure.click()
    assert asked == [(stack, (5, 17, 3))] and explorer.measure.layout.display == "none"
    record = explorer.view.record
    expected = COSTS.round_ms("dartree", len(record.tree), record.head_calls, SETTINGS)
    assert f"{expected:.1f} ms" in explorer.numbers.value


def test_every_control_has_a_label(stack, explorer):
    stepper = widgets.step(stack, **OPTIONS)
    panel = widgets.what_if(stack, prompts=[[5, 17, 3]], max_new_tokens=6, costs=COSTS)
    controls = [w for box in (explorer, stepper, panel) for w in parts(box) if hasattr(w, "value")
                or isinstance(w, ipywidgets.Button)]  # fmt: skip
    controls = [w for w in controls if not isinstance(w, (ipywidgets.HTML, ipywidgets.Label))]
    assert len(controls) > 30
    assert all(control.description for control in controls)


def parts(box):
    return [box, *(part for child in getattr(box, "children", ()) for part in parts(child))]


def test_nodes_can_be_chosen_and_pruned_ones_hidden(explorer):
    assert len(explorer.node.options) == 1 + len(explorer.view.nodes)
    explorer.node.value = 2
    assert "conditional under its parent" in explorer.details.value
    with_pruned = explorer.picture.value
    explorer.pruned.value = False
    assert len(explorer.picture.value) < len(with_pruned)


def test_exports_open_follow_and_close(explorer):
    explorer.exports["JSON"].click()
    first = explorer.export_text.value
    assert '"record"' in first and "download=" in explorer.link.value
    explorer.tree.budget.value = 2
    assert explorer.export_text.value != first
    explorer.exports["JSON"].click()
    assert explorer.export_text.value == "" and explorer.export_text.layout.display == "none"


def test_a_bad_prompt_keeps_the_picture_and_says_why(explorer):
    shown = explorer.picture.value
    for text, words in (("", "must not be empty"), ("5, x", "token ids such as"), ("999", "0..96")):
        explorer.prompt.text.value = text
        assert words in explorer.message.value and explorer.picture.value == shown
        assert "Traceback" not in explorer.message.value
    explorer.prompt.text.value = "7 8 9"
    assert explorer.message.value == "" and explorer.picture.value != shown


def test_two_hundred_moves_leave_no_figures_and_one_set_of_observers(stack):
    figures = plt.get_fignums()
    explorer = widgets.explore(stack, costs=COSTS, **OPTIONS)
    again = widgets.explore(stack, costs=COSTS, **OPTIONS)  # the cell is run a second time
    looks, look = [], again.session.look
    again.session.look = lambda choice: looks.append(choice) or look(choice)
    for move in range(200):
        again.tree.budget.value = 1 + move % 9
    assert len(looks) == 199 + (SETTINGS.budget != 1)  # one look for every change of value
    assert explorer.tree.budget.value == SETTINGS.budget
    panel = widgets.what_if(stack, prompts=[[5, 17, 3]], settings=SETTINGS, max_new_tokens=6,
                            costs=COSTS)  # fmt: skip
    for move in range(5):
        panel.tree.budget.value = 1 + move
    assert plt.get_fignums() == figures


def test_prompt_menu_and_text_agree(stack):
    rows = [{"id": f"p{i}", "domain": "d", "ids": [i + 1, i + 2]} for i in range(3)]
    explorer = widgets.explore(stack, prompts=rows, max_new_tokens=8, costs=COSTS)
    explorer.prompt.menu.value = 2
    assert explorer.prompt.prompt() == (3, 4)
    explorer.prompt.text.value = "9"
    assert explorer.prompt.menu.value == -1
    with pytest.raises(ValueError, match="no tokenizer"):
        widgets.explore(stack)


def test_stepper_shows_the_runs(stack):
    options = {"methods": ("ar", "dartree"), **OPTIONS}
    stepper = widgets.step(stack, **options)
    run = dartree.generate(stack, [5, 17, 3], method="ar", max_new_tokens=12)
    assert stepper.round.max == run.rounds
    for expected in (2, 3):
        stepper.forth.click()
        assert stepper.round.value == stepper.play.value == expected
        assert f"{expected + 0} tokens in {expected} rounds" in stepper.sides[0].value
    stepper.back.click()
    assert stepper.round.value == 2
    stepper.round.value = stepper.round.max
    assert "finished after" in stepper.sides[0].value
    stepper.methods[0].value = "heap"
    assert stepper.round.value == 1 and "heap" in stepper.sides[0].value
    with pytest.raises(ValueError, match="two methods"):
        widgets.step(stack, methods=("ar",))


def test_curve_is_the_tau_of_decoding(stack):
    prompts = [[5, 17, 3], [8, 2]]
    panel = widgets.what_if(stack, prompts=prompts, settings=SETTINGS, max_new_tokens=12,
                            costs=COSTS)  # fmt: skip
    assert panel.message.value == ""
    curve = panel.curve
    assert curve.values == sorted({*whatif.SWEEPS["budget"], 9}) and curve.current == 9
    points = list(zip(curve.values, curve.tau, curve.tokens_per_second, strict=True))
    for value, tau, speed in points[::5]:
        settings = replace(SETTINGS, budget=value)
        assert speed == pytest.approx(1000 * tau / COSTS.ms(settings))
        runs = dartree.generate(stack, prompts, settings=settings, max_new_tokens=12)
        counts = [count for run in runs for count in run.accepted_per_round]
        assert tau == pytest.approx(sum(counts) / len(counts))
    shown = panel.picture.value
    panel.parameter.value = "depth_penalty"
    assert panel.curve.parameter == "depth_penalty" and panel.picture.value != shown
    assert "alt=" in panel.picture.value and panel.message.value == ""


def test_what_if_moves_generate_nothing(stack, monkeypatch):
    panel = widgets.what_if(stack, prompts=[[5, 17, 3]], settings=SETTINGS, max_new_tokens=6,
                            costs=COSTS)  # fmt: skip
    targets = []
    hook = stack.target.model.register_forward_hook(lambda *_: targets.append(1))
    heads, score = [], stack.head.score
    monkeypatch.setattr(stack.head, "score", lambda *given: heads.append(1) or score(*given))
    panel.tree.budget.value = 3
    panel.tree.depth_penalty.value = 0.5
    panel.parameter.value = "depth_penalty"
    assert not heads
    panel.parameter.value = "width"
    panel.tree.candidates.value = 4
    hook.remove()
    assert heads and not targets and panel.message.value == ""
