"""The report as a reader has it: in a real Chromium, without a network."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from selenium.webdriver.common.keys import Keys
from support.browser import Browser
from support.report_runs import export, typical_metrics, write_run

from areal_callbacks.report import build_report

STEPS, LAYERS, EXPERTS = 12, 6, 16
HOT, DEAD = (2, 11), (4, 3)
FIRST_HOT = (5, 0)
EVIL = "</script><script>window.pwned = 1</script><img src=x onerror='window.pwned = 1'>"
STEP_LAYER, LAYER_EXPERT = '[aria-label="Step × layer"] .heatmap', '[aria-label="Layer × expert"] .heatmap'
LEFT, RIGHT, TOP, BOTTOM = 40, 1, 5, 20  # margins of a heatmap around its cells


def planted(step: int) -> NDArray[np.int64]:
    """Nearly balanced loads with a dead expert, and a hot one that is another at the first step."""
    counts = 100 + np.arange(LAYERS * EXPERTS).reshape(LAYERS, EXPERTS) % 7
    counts[FIRST_HOT if step == 1 else HOT] = 400
    counts[DEAD] = 0
    return counts


def max_over_ideal(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    return counts.max(axis=1) / counts.mean(axis=1)


def build(folder: Path, *runs: list[Any], names: list[str] | None = None, config: Any = None) -> Path:
    files = [write_run(folder / f"run{number}", exports, config) for number, exports in enumerate(runs)]
    return build_report(files, folder / "report.html", names=names)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    exports = [export(step, typical_metrics(step, STEPS), planted(step)) for step in range(1, STEPS + 1)]
    return build(tmp_path_factory.mktemp("report"), exports, names=["planted"])


@pytest.fixture
def page(browser: Browser, report: Path) -> Iterator[Browser]:
    browser.open(report)
    yield browser
    browser.prefer("light")


def centre(element: Any, row: int, column: int, rows: int, columns: int) -> tuple[float, float]:
    width, height = element.size["width"] - LEFT - RIGHT, element.size["height"] - TOP - BOTTOM
    return LEFT + (column + 0.5) * width / columns, TOP + (row + 0.5) * height / rows


def cells(browser: Browser, selector: str, rows: int, columns: int) -> NDArray[np.int64]:
    """Red, green, blue of the middle of every cell, ``[rows, columns, 3]``."""
    element = browser.find(selector)
    picture: Image.Image = browser.picture(element)
    places = [[centre(element, row, column, rows, columns) for column in range(columns)] for row in range(rows)]
    return np.array([[picture.getpixel((round(x), round(y))) for x, y in row] for row in places])


def hottest(colours: NDArray[np.int64]) -> tuple[int, ...]:
    """The cell with the strongest orange: the most red over blue."""
    return tuple(map(int, np.unravel_index((colours[..., 0] - colours[..., 2]).argmax(), colours.shape[:2])))


def legend(browser: Browser, title: str) -> dict[str, str]:
    entries = browser.all(f'[aria-label="{title}"] .u-series')
    parts = [
        [str(part.get_attribute("textContent")) for part in entry.find_elements("css selector", "th, td")]
        for entry in entries
    ]
    return dict(parts)


def test_every_part_is_there(page: Browser) -> None:
    titles = [str(heading.get_attribute("textContent")) for heading in page.all("h3")]
    assert titles == [
        "Step × layer",
        "Layer × expert",
        "Experts of layer 2",
        "Throughput",
        "Estimated FLOP/s",
        "Timing",
        "Train/infer tails",
        "Train/infer divergence",
        "Absolute log-probability gap",
        "Staleness",
        "Stale and future tokens",
        "All scalars",
    ]
    assert page.text("h1") == "planted"
    assert f"steps 1–{STEPS}" in page.text(".facts")
    assert f"{LAYERS} layers × {EXPERTS} experts" in page.text(".facts")


def test_the_hot_and_the_dead_expert_are_seen(page: Browser) -> None:
    colours = cells(page, LAYER_EXPERT, LAYERS, EXPERTS)
    assert hottest(colours) == HOT
    assert colours[HOT][0] - colours[HOT][2] > 100
    assert tuple(np.argwhere(colours.sum(axis=2) < 30)[0]) == DEAD
    assert (colours.sum(axis=2) < 30).sum() == 1


def test_the_imbalanced_layer_is_seen_over_the_steps(page: Browser) -> None:
    darkness = -cells(page, STEP_LAYER, LAYERS, STEPS).sum(axis=2)
    assert darkness.argmax(axis=0).tolist() == [FIRST_HOT[0]] + [HOT[0]] * (STEPS - 1)


def test_hovering_tells_the_numbers(page: Browser) -> None:
    element = page.find(LAYER_EXPERT)
    counts = planted(STEPS)
    for layer, expert in (HOT, DEAD, (0, 0), (LAYERS - 1, EXPERTS - 1)):
        page.hover(element, *centre(element, layer, expert, LAYERS, EXPERTS))
        count, total = counts[layer, expert], counts[layer].sum()
        text = page.text("#tip")
        assert f"layer {layer} · expert {expert}" in text
        assert f"{count * EXPERTS / total:.2f}× ideal" in text
        assert f"{100 * count / total:.3g}"[:4] in text
        assert f"{count} assignments" in text
    history = page.find(STEP_LAYER)
    page.hover(history, *centre(history, HOT[0], 5, LAYERS, STEPS))
    assert "step 6 · layer 2" in page.text("#tip")
    assert f"{max_over_ideal(planted(6))[HOT[0]]:.3f}" in page.text("#tip")
    page.hover(page.find("h1"), 1, 1)
    assert page.find("#tip").value_of_css_property("display") == "none"


def test_the_slider_changes_the_step(page: Browser) -> None:
    slider = page.find("input[type=range]")
    assert page.text(".step") == str(STEPS)
    slider.send_keys(Keys.HOME)
    assert page.text(".step") == "1"
    assert hottest(cells(page, LAYER_EXPERT, LAYERS, EXPERTS)) == FIRST_HOT
    slider.send_keys(Keys.ARROW_RIGHT)
    assert page.text(".step") == "2"
    assert hottest(cells(page, LAYER_EXPERT, LAYERS, EXPERTS)) == HOT


def test_playing_runs_through_the_steps_until_it_is_stopped(page: Browser) -> None:
    button = page.find(".controls button")
    button.click()
    seen = {page.text(".step")}
    page.wait(lambda: seen.add(page.text(".step")) or len(seen) >= 4)
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    stopped = page.text(".step")
    page.driver.execute_async_script("setTimeout(arguments[0], 400)")
    assert page.text(".step") == stopped


def test_a_click_in_the_history_goes_to_that_step_and_layer(page: Browser) -> None:
    element = page.find(STEP_LAYER)
    page.click(element, *centre(element, FIRST_HOT[0], 0, LAYERS, STEPS))
    assert page.text(".step") == "1"
    assert page.all("h3")[2].text == f"Experts of layer {FIRST_HOT[0]}"
    assert f"busiest expert {FIRST_HOT[1]} ({max_over_ideal(planted(1))[FIRST_HOT[0]]:.2f}× ideal)" in page.text(
        ".balance .card:nth-child(3) .note"
    )


def test_the_bars_tell_the_experts_of_the_layer(page: Browser) -> None:
    assert "dashed: the ideal load 6.25 %" in page.text(".balance .card:nth-child(3) .note")
    over = page.find(".bars .u-over")
    width = over.size["width"]
    page.hover(over, (HOT[1] + 0.6) * width / (EXPERTS + 0.2), over.size["height"] / 2)
    page.wait(lambda: "expert 11" in page.text("#tip"))
    assert "400 assignments" in page.text("#tip")
    picture = page.picture(over)
    bar = np.array(picture.getpixel((round((HOT[1] + 0.6) * width / (EXPERTS + 0.2)), over.size["height"] // 2)))
    assert bar[0] - bar[2] > 100


def test_everything_is_reached_with_the_keyboard(page: Browser) -> None:
    history = page.find(STEP_LAYER)
    history.send_keys(Keys.ARROW_LEFT)
    assert page.text(".step") == str(STEPS - 1)
    history.send_keys(Keys.ARROW_DOWN)
    assert "layer 3" in page.text("#tip")
    page.find(LAYER_EXPERT).send_keys(Keys.ARROW_UP)
    assert page.all("h3")[2].text == "Experts of layer 2"
    chart = page.find('[aria-label="Throughput"] .chart')
    chart.send_keys(Keys.HOME)
    assert legend(page, "Throughput")["step"] == "1"
    chart.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert legend(page, "Throughput")["tokens/s"] == "1,003 tok/s"
    parts = ".heatmap, button, input, select, .chart:not(.bars), .finder ul, .u-series:not(:first-child) th"
    unreachable = page.run(f"return [...document.querySelectorAll('{parts}')].filter(node => node.tabIndex < 0).length")
    assert unreachable == 0


def test_the_charts_show_the_values_under_the_pointer(page: Browser) -> None:
    over = page.find('[aria-label="Throughput"] .u-over')
    page.hover(over, 0.5 * over.size["width"], 40)
    shown = page.wait(lambda: (found := legend(page, "Throughput"))["step"] in "67" and found)
    step = int(shown["step"])
    assert shown["tokens/s"] == f"{1000 + step:,} tok/s"
    assert legend(page, "Estimated FLOP/s")["step"] == str(step), "the pointers of the charts go together"
    assert legend(page, "Estimated FLOP/s")["MFU"] == "25 %"
    timing = legend(page, "Timing")
    assert timing["training"] == f"{2 + step / STEPS:.3g} s"
    assert timing["optimizer"] == "500 ms"
    assert timing["rollout"] == f"{3 - step / STEPS:.3g} s"
    staleness = legend(page, "Staleness")
    assert staleness["theta avg"] == "1.5"
    assert staleness["proximal max"] == "4"


def test_a_click_in_a_chart_goes_to_that_step(page: Browser) -> None:
    over = page.find('[aria-label="Throughput"] .u-over')
    page.click(over, 2, 40)
    assert page.text(".step") == "1"


def test_the_tails_have_readable_decades(page: Browser) -> None:
    assert page.drawn_texts("Train/infer tails") >= {"10 %", "1 %", "0.1 %", "0.01 %", "0.001 %"}
    assert "0" not in page.drawn_texts("Train/infer tails")
    assert set(legend(page, "Train/infer tails")) == {"step", "k = 1.5", "k = 2", "k = 3", "k = 5", "k = 10"}
    assert legend(page, "Train/infer tails")["k = 2"] == "0.6 %"


def test_any_scalar_is_found(page: Browser) -> None:
    search = page.find("input[type=search]")
    search.send_keys("roll rew")
    visible = [option.get_attribute("data-key") for option in page.all(".finder li") if option.is_displayed()]
    assert visible == ["rollout/reward"]
    assert page.text(".viewer h4") == "rollout/reward"
    assert legend(page, "All scalars")["value"] == "1"
    search.clear()
    search.send_keys("layer_4")
    assert page.text(".viewer h4") == "moe_balance/layer_4/max_over_ideal"
    assert legend(page, "All scalars")["value"] == f"{max_over_ideal(planted(STEPS))[4]:.3f}"
    search.clear()
    search.send_keys("train_perf")
    search.send_keys(Keys.ARROW_DOWN)
    chosen = page.find('.finder li[aria-selected="true"]').get_attribute("data-key")
    assert chosen == page.text(".viewer h4")
    assert chosen.startswith("train_perf/")
    assert len(page.all(".finder li")) == len(typical_metrics(1, 1)) + LAYERS


def test_dark_and_light_follow_the_system(page: Browser) -> None:
    def brightness() -> list[float]:
        history = cells(page, STEP_LAYER, LAYERS, STEPS)
        background = page.run("return getComputedStyle(document.body).backgroundColor")
        return [sum(map(int, background[4:-1].split(","))) / 3, history[0, 3].mean(), history[HOT[0], 3].mean()]

    light = brightness()
    page.prefer("dark")
    page.wait(lambda: brightness() != light)
    dark = brightness()
    assert light[0] > 200 > 60 > dark[0]
    assert light[1] > light[2], "balanced is bright on white"
    assert dark[1] < dark[2], "balanced is dark on black"
    assert hottest(cells(page, LAYER_EXPERT, LAYERS, EXPERTS)) == HOT


@pytest.mark.parametrize("width", [1280, 700, 390])
def test_nothing_is_wider_than_the_window(browser: Browser, report: Path, width: int) -> None:
    browser.open(report, width=width)
    assert browser.run("return document.documentElement.scrollWidth") <= width


def test_printing_is_light_and_without_controls(browser: Browser, report: Path) -> None:
    browser.open(report, dark=True)
    browser.run("dispatchEvent(new Event('beforeprint'))")
    assert browser.run("return getComputedStyle(document.body).color") == "rgb(23, 25, 31)"
    assert browser.run("return Math.max(...[...document.querySelectorAll('.chart')].map(c => c.scrollWidth))") <= 720
    browser.run("dispatchEvent(new Event('afterprint'))")
    assert browser.run("return getComputedStyle(document.body).color") == "rgb(231, 233, 238)"
    assert len(browser.driver.print_page()) > 10_000


def test_a_dense_model_has_no_section_of_experts(browser: Browser, tmp_path: Path) -> None:
    browser.open(build(tmp_path, [export(step, typical_metrics(step, 5)) for step in range(1, 6)]))
    assert not browser.all(".balance, .heatmap")
    assert browser.all("h3")[0].text == "Throughput"


def test_layers_with_their_scalars_alone(browser: Browser, tmp_path: Path) -> None:
    exports = [
        export(step, {f"moe_balance/layer_{layer}/max_over_ideal": 1.0 + (layer == 10) for layer in (2, 10)})
        for step in (1, 2, 3)
    ]
    browser.open(build(tmp_path, exports))
    assert [heading.text for heading in browser.all("h3")] == ["Step × layer", "All scalars"]
    darkness = -cells(browser, STEP_LAYER, 2, 3).sum(axis=2)
    assert (darkness[1] > darkness[0]).all(), "layer 10 comes after layer 2"
    element = browser.find(STEP_LAYER)
    browser.click(element, *centre(element, 1, 2, 2, 3))
    assert "step 3 · layer 10" in browser.text("#tip")


def test_several_stacks_and_layers_of_different_width(browser: Browser, tmp_path: Path) -> None:
    counts = {("", 1): [10, 10], ("", 3): [1, 2, 1, 12], ("encoder", 0): [4, 0, 8]}
    browser.open(build(tmp_path, [export(step, {}, counts) for step in (1, 2)]))
    assert "2 layers × 2–4 experts" in browser.text(".facts")
    assert "encoder: 1 layer × 3 experts" in browser.text(".facts")
    assert [option.text for option in browser.all("select option")] == ["1", "3"]
    assert browser.all("h3")[2].text == "Experts of layer 3"
    element = browser.find(LAYER_EXPERT)
    browser.hover(element, *centre(element, 0, 3, 2, 4))
    assert "no such expert" in browser.text("#tip")
    browser.hover(element, *centre(element, 1, 3, 2, 4))
    assert "3.00× ideal" in browser.text("#tip")
    browser.all(".tabs button")[1].click()
    assert [option.text for option in browser.all("select option")] == ["0"]
    element = browser.find(LAYER_EXPERT)
    browser.hover(element, *centre(element, 0, 2, 1, 3))
    assert "2.00× ideal · 66.7 %" in browser.text("#tip")


def test_numbers_that_are_not_finite(browser: Browser, tmp_path: Path) -> None:
    tail = "ppo_actor/train_infer/ratio_outside_2"
    values = {1: 0.01, 2: math.nan, 3: 0.02, 4: 0.0, 5: math.inf}
    counts = np.array([[0, 0], [1, 3]])
    exports = [export(step, {tail: value, "grad_norm": math.nan}, counts) for step, value in values.items()]
    browser.open(build(tmp_path, exports))
    assert "0" in browser.drawn_texts("Train/infer tails"), "zeros have a place on the log axis"
    chart = browser.find('[aria-label="Train/infer tails"] .chart')
    chart.send_keys(Keys.HOME)
    shown = [legend(browser, "Train/infer tails")["k = 2"]]
    for _ in range(4):
        chart.send_keys(Keys.ARROW_RIGHT)
        shown.append(legend(browser, "Train/infer tails")["k = 2"])
    assert shown == ["1 %", "NaN", "2 %", "0 %", "∞"]
    browser.find("input[type=search]").send_keys("grad_norm")
    assert legend(browser, "All scalars")["value"] == "NaN"


def test_one_export_and_none(browser: Browser, tmp_path: Path) -> None:
    browser.open(build(tmp_path / "one", [export(7, typical_metrics(7, 7), planted(7))]))
    assert hottest(cells(browser, LAYER_EXPERT, LAYERS, EXPERTS)) == HOT
    browser.open(build(tmp_path / "none", []))
    assert "nothing recorded" in browser.text(".facts")


def test_runs_are_compared(browser: Browser, tmp_path: Path) -> None:
    first = [export(step, typical_metrics(step, 8), planted(2)) for step in range(1, 9)]
    second = [export(step, {"train_perf/tokens_per_second": 2000.0, "loss": 1.0}, planted(1)) for step in range(1, 5)]
    browser.open(build(tmp_path, first, second, names=["baseline", "aux loss"]))
    assert browser.text("h1") == "baseline · aux loss"
    assert [cell.text for cell in browser.all(".comparison thead th")] == ["end of the run", "baseline", "aux loss"]
    browser.run("scrollTo(0, 0)")
    assert legend(browser, "Throughput") == {"step": "8", "baseline": "1,008 tok/s", "aux loss": "2,000 tok/s"}
    maps = browser.all(STEP_LAYER)
    assert len(maps) == 2
    assert hottest(cells(browser, LAYER_EXPERT, LAYERS, EXPERTS)) == HOT
    browser.click(maps[1], *centre(maps[1], 0, 3, LAYERS, 4))
    assert browser.text(".step") == "4"
    assert "aux loss" in browser.text('[aria-label="Layer × expert"] .note')
    assert hottest(cells(browser, LAYER_EXPERT, LAYERS, EXPERTS)) == FIRST_HOT


def test_names_and_configurations_stay_text(browser: Browser, tmp_path: Path) -> None:
    config = {"note": EVIL, EVIL: {"nested": [EVIL]}}
    exports = [export(1, {EVIL: 1.0, "loss": 2.0}, {(EVIL, 0): [1, 2], ("", 0): [1, 1]})]
    browser.open(build(tmp_path, exports, names=[EVIL], config=config))
    assert browser.text("h1") == EVIL
    assert browser.driver.title.startswith(EVIL)
    assert EVIL in browser.text(".config")
    assert EVIL in browser.text(".finder")
    assert EVIL in browser.text(".tabs")
    assert not browser.all("img")
    assert browser.run("return window.pwned") is None


def test_a_resumed_run_says_so(browser: Browser, tmp_path: Path) -> None:
    write_run(tmp_path, [export(step, {"loss": 1.0}) for step in range(1, 6)])
    file = write_run(tmp_path, [export(step, {"loss": 2.0}) for step in range(4, 8)])
    browser.open(build_report([file], tmp_path / "report.html"))
    assert "steps 1–7" in browser.text(".facts")
    assert "resumed at step 4" in browser.text(".facts")


@pytest.mark.slow
def test_a_usual_run_is_painted_within_a_second(browser: Browser, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    counts = [generator.poisson(4096, size=(48, 128)) for _ in range(4)]
    exports = (export(step, typical_metrics(step, 400), counts[step % 4]) for step in range(1, 401))
    report = build(tmp_path, list(exports))
    paints = []
    for _ in range(3):  # a busy machine may slow one of them down
        browser.open(report)
        paints.append(browser.run("return performance.getEntriesByName('first-contentful-paint')[0].startTime"))
    assert min(paints) < 1000
