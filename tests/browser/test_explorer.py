"""The explorers as a person meets them: JupyterLab, Run All, the keyboard."""

import json
import os
import re
import statistics

import nbformat
import pytest

from dartree import reports
from tests.browser.lab import FLAGS, SCREENSHOTS, browser_path, running_lab, why_not

pytestmark = pytest.mark.browser
READY = 400_000  # milliseconds; a loaded machine may need them
FAILED = ".jp-OutputArea-output[data-mime-type='application/vnd.jupyter.error']"
IDLE = ".jp-Notebook-ExecutionIndicator[data-status=idle]"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The explorer's notebook after Run All, with ``page.problems`` filling as things go wrong."""
    if reason := why_not():
        pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    folder, scratch = tmp_path_factory.mktemp("notebooks"), tmp_path_factory.mktemp("lab")
    book = nbformat.read(reports.PROJECT / "notebooks" / "11_explorer.ipynb", 4)
    (cell,) = (c for c in book.cells if "parameters" in c.metadata.get("tags", []))
    cell.source = cell.source.replace("quick: bool = False", "quick: bool = True").replace(
        '"build/figures"', repr(str(folder / "figures"))
    )
    nbformat.write(book, folder / "explorer.ipynb")
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    with running_lab(folder, scratch) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path(), args=FLAGS)
        page = browser.new_page(viewport={"width": 1440, "height": 2000})
        page.problems = []
        page.on("console", lambda m: m.type == "error" and page.problems.append(m.text))
        page.on("pageerror", lambda error: page.problems.append(str(error)))
        page.goto(f"{address}/lab/tree/explorer.ipynb?reset")
        page.get_by_text("Python 3 | Idle").wait_for(timeout=READY)  # connected to its kernel
        run_all(page)
        page.wait_for_selector(f".dartree-what-if img, {FAILED}", timeout=READY)
        assert not (failed := page.locator(FAILED)).count(), failed.first.inner_text()
        page.wait_for_selector(IDLE, timeout=READY)
        yield page
        browser.close()


def run_all(page) -> None:
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()


def handle(page, box: str, label: str):
    row = page.locator(f"{box} .widget-inline-hbox").filter(
        has=page.locator(".widget-label", has_text=re.compile(f"^{re.escape(label)}$"))
    )
    return row.locator(".noUi-handle")


def press(page, box: str, label: str, key: str) -> str:
    """Press ``key`` on a slider and wait for the picture to change; returns the new one."""
    picture = page.locator(f"{box} svg[role=img]")
    before = picture.evaluate("e => e.outerHTML")
    handle(page, box, label).focus()
    page.keyboard.press(key)
    page.wait_for_function(
        "([box, old]) => document.querySelector(box + ' svg[role=img]').outerHTML !== old",
        arg=[box, before], timeout=60_000,
    )  # fmt: skip
    return picture.evaluate("e => e.outerHTML")


def counters(page) -> list[tuple[int, int]]:
    """(this picture, in all) for drafter forwards, head calls and target forwards."""
    text = page.locator(".dartree-explorer .dartree-calls").inner_text()
    return [(int(now), int(every)) for now, every in re.findall(r"\+(\d+) \((\d+)\)", text)]


BOX = ".dartree-explorer"


def test_every_cell_ran(page):
    page.screenshot(path=SCREENSHOTS / "notebook.png", full_page=True)
    assert page.locator(".jp-OutputArea-output[data-mime-type*=stderr]").count() == 0
    assert page.locator(BOX).count() == 1
    assert page.locator(".dartree-stepper .dartree-step").count() == 2
    assert page.problems == []


@pytest.mark.parametrize(
    "label, key, moved",
    [
        ("B: budget", "ArrowLeft", (0, 0, 0)),
        ("depth penalty", "PageUp", (0, 0, 0)),
        ("W: width", "ArrowRight", (0, 16, 2)),
        ("K: candidates", "ArrowLeft", (0, 16, 2)),
        ("round", "ArrowLeft", (1, 16, 3)),
    ],
)
def test_a_slider_redraws_and_counts(page, label, key, moved):
    before = counters(page)
    press(page, BOX, label, key)
    after = counters(page)
    assert tuple(now for now, _ in after) == moved
    assert [b - a for (_, a), (_, b) in zip(before, after, strict=True)] == list(moved)
    page.locator(BOX).screenshot(path=SCREENSHOTS / f"{re.sub('[^a-z]+', '-', label.lower())}.png")
    assert page.problems == []


def test_method_menu_node_menu_and_export(page):
    explorer = page.locator(BOX)
    explorer.get_by_label("method", exact=True).select_option("ddtree")
    explorer.get_by_text("ddtree does not use W, K and the depth penalty.").wait_for()
    explorer.get_by_label("method", exact=True).select_option("dartree")
    explorer.get_by_text("ddtree does not use").wait_for(state="detached")
    explorer.get_by_label("node", exact=True).select_option(index=3)
    explorer.locator(".dartree-node").get_by_text("conditional under its parent").wait_for()
    explorer.get_by_role("button", name="JSON").click()
    with page.expect_download() as download:
        explorer.locator(".dartree-save").click()
    assert download.value.suggested_filename.endswith(".json")
    explorer.get_by_role("button", name="Command").click()
    explorer.locator(".dartree-save", has_text=".sh").wait_for()
    assert page.problems == []


def test_a_bad_prompt_is_a_sentence(page):
    explorer = page.locator(BOX)
    box = explorer.get_by_label("prompt", exact=True)
    good = box.input_value()
    box.fill(" ")
    box.blur()
    explorer.locator("[role=alert]").get_by_text("prompt must not be empty").wait_for()
    box.fill(good)
    box.blur()
    explorer.locator("[role=alert]").wait_for(state="detached")
    assert page.problems == []


def test_stepper_goes_on(page):
    stepper = page.locator(".dartree-stepper")
    before = stepper.inner_text()
    stepper.get_by_role("button", name="next").click()
    page.wait_for_function(
        "old => document.querySelector('.dartree-stepper').innerText !== old", arg=before
    )
    stepper.screenshot(path=SCREENSHOTS / "stepper.png")
    stepper.locator("button:has(.fa-play)").press("Enter")  # to the end, by itself
    stepper.get_by_text("finished after").first.wait_for()
    assert page.problems == []


def test_the_tab_key_reaches_every_control(page):
    """In reading order, with no mouse; controls without a label would show as an empty name."""
    page.locator(f"{BOX} select").first.focus()
    reached = []
    for _ in range(40):
        reached.append(page.evaluate(FOCUSED, BOX))
        page.keyboard.press("Tab")
        if reached[-1] is None:
            break
    names = ["prompt menu", "prompt", "round", "W: width", "K: candidates", "B: budget",
             "depth penalty", "method", "temperature", "seed", "show pruned nodes", "node", "SVG",
             "JSON", "DOT", "Command"]  # fmt: skip
    assert [name for name in dict.fromkeys(reached) if name in names] == names
    assert "" not in reached and reached[-1] is None


def test_what_if_moves(page):
    image = page.locator(".dartree-what-if img")
    before = image.get_attribute("alt")
    handle(page, ".dartree-what-if", "B: budget").focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function(
        "old => document.querySelector('.dartree-what-if img').alt !== old", arg=before,
        timeout=60_000,
    )  # fmt: skip
    page.locator(".dartree-what-if").screenshot(path=SCREENSHOTS / "what-if.png")
    assert page.problems == []


# Label of the control that has the focus, null outside the box; the first of a slider's two is
# its handle, the other its number.
FOCUSED = """
box => {
  const at = document.activeElement;
  if (!at.closest(box)) return null;
  const row = at.closest('.widget-inline-hbox, .jupyter-widgets');
  const labels = [...row.querySelectorAll('label')].map(label => label.innerText).join('');
  return (labels || row.innerText).replace('\\u200b', '').trim();
}
"""
WATCH = """
([box]) => {
  const now = () => document.querySelector(box + ' svg[role=img]');
  const watch = window.watch = {times: [], pressed: null, shown: now()};
  document.addEventListener('keydown', event => {
    if (event.target.matches('.noUi-handle')) watch.pressed = performance.now();
  }, true);
  new MutationObserver(() => {
    if (watch.pressed === null || now() === watch.shown || !now()) return;
    watch.shown = now();
    watch.times.push(performance.now() - watch.pressed);
    watch.pressed = null;
  }).observe(document.querySelector(box), {childList: true, subtree: true});
}
"""


def test_how_long_an_answer_takes_is_noted(page):
    """From the key press to the new picture in the page; kept as a file, judged by people."""
    page.evaluate(WATCH, [BOX])
    found = {"cores": os.cpu_count(), "load_before": os.getloadavg(), "milliseconds": {}}
    for label, key, presses, calls in (
        ("B: budget", "ArrowLeft", 16, [0, 0, 0]),
        ("depth penalty", "ArrowRight", 16, [0, 0, 0]),
        ("W: width", "ArrowLeft", 8, [0, 16, 2]),
        ("K: candidates", "ArrowLeft", 5, [0, 16, 2]),
    ):
        for _ in range(presses):
            press(page, BOX, label, key)
            assert [now for now, _ in counters(page)] == calls, f"{label}: an answer was kept"
        times = sorted(page.evaluate("watch.times.splice(0)"))
        assert len(times) == presses
        found["milliseconds"][label] = {
            "median": statistics.median(times), "longest": times[-1], "all": times,
        }  # fmt: skip
        print(f"{label}: {statistics.median(times):.0f} ms, longest {times[-1]:.0f} ms")
    found["load_after"] = os.getloadavg()
    (SCREENSHOTS / "latency.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
    assert page.problems == []


def test_running_a_cell_again_leaves_one_explorer(page):
    """And a move costs one update: observers are not doubled."""
    run_all(page)
    page.wait_for_selector(".jp-Notebook-ExecutionIndicator[data-status=busy]", timeout=30_000)
    page.wait_for_selector(IDLE, timeout=READY)
    assert page.locator(BOX).count() == 1
    press(page, BOX, "W: width", "ArrowRight")
    assert [now for now, _ in counters(page)] == [0, 16, 2]
    assert page.problems == []
