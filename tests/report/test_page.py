"""The report as a reader has it: in a real Chromium, without a network."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from selenium.webdriver.common.keys import Keys
from support.browser import Browser
from support.report_pages import (
    EXPERTS,
    FIRST_HOT,
    HOT,
    LAYER_EXPERT,
    LAYERS,
    STEP_LAYER,
    STEPS,
    build_page,
    find_centre,
    find_hottest,
    plant_counts,
    read_cells,
    read_legend,
)
from support.report_runs import export, typical_metrics, write_run

from areal_callbacks.report import build_report

EVIL = "</script><script>window.pwned = 1</script><img src=x onerror='window.pwned = 1'>"


def test_every_part_is_there(page: Browser) -> None:
    titles = [str(heading.get_attribute("textContent")) for heading in page.all("h3")]
    assert titles == [
        "Reward",
        "Step × layer",
        "Layer × expert",
        "Experts of layer 2",
        "Throughput",
        "Estimated FLOP/s",
        "MFU",
        "Time per optimizer step",
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


def test_everything_is_reached_with_the_keyboard(page: Browser) -> None:
    history = page.find(STEP_LAYER)
    history.send_keys(Keys.ARROW_LEFT)
    assert page.text(".step") == str(STEPS - 1)
    history.send_keys(Keys.ARROW_DOWN)
    assert "layer 3" in page.text("#tip")
    page.find(LAYER_EXPERT).send_keys(Keys.ARROW_UP)
    assert page.all("h3")[3].text == "Experts of layer 2"
    chart = page.find('[aria-label="Throughput"] .chart')
    chart.send_keys(Keys.HOME)
    assert read_legend(page, "Throughput")["step"] == "1"
    chart.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert read_legend(page, "Throughput")["tokens/s"] == "1,003 tok/s"
    assert page.all("h1, h2, h3, h4")[0].tag_name == "h1"
    parts = ".heatmap, button, a, input, select, .chart:not(.bars), .finder ul, .u-series:not(:first-child) th"
    unreachable = page.run(f"return [...document.querySelectorAll('{parts}')].filter(node => node.tabIndex < 0).length")
    assert unreachable == 0


def test_dark_and_light_follow_the_system(page: Browser) -> None:
    def brightness() -> list[float]:
        history = read_cells(page, STEP_LAYER, LAYERS, STEPS)
        background = page.run("return getComputedStyle(document.body).backgroundColor")
        return [sum(map(int, background[4:-1].split(","))) / 3, history[0, 3].mean(), history[HOT[0], 3].mean()]

    light = brightness()
    page.prefer("dark")
    page.wait(lambda: brightness() != light)
    dark = brightness()
    assert light[0] > 200 > 60 > dark[0]
    assert light[1] > light[2], "balanced is bright on white"
    assert dark[1] < dark[2], "balanced is dark on black"
    assert find_hottest(read_cells(page, LAYER_EXPERT, LAYERS, EXPERTS)) == HOT


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


def test_one_export_and_none(browser: Browser, tmp_path: Path) -> None:
    browser.open(build_page(tmp_path / "one", [export(7, typical_metrics(7, 7), plant_counts(7))]))
    assert find_hottest(read_cells(browser, LAYER_EXPERT, LAYERS, EXPERTS)) == HOT
    browser.open(build_page(tmp_path / "none", []))
    assert "nothing recorded" in browser.text(".facts")


def test_runs_are_compared(browser: Browser, tmp_path: Path) -> None:
    first = [export(step, typical_metrics(step, 8), plant_counts(2)) for step in range(1, 9)]
    second = [
        export(step, {"train_perf/tokens_per_second": 2000.0, "loss": 1.0}, plant_counts(1)) for step in range(1, 5)
    ]
    browser.open(build_page(tmp_path, first, second, names=["baseline", "aux loss"]))
    assert browser.text("h1") == "baseline · aux loss"
    assert [cell.text for cell in browser.all(".comparison thead th")] == [
        "median of the last tenth",
        "baseline",
        "aux loss",
    ]
    browser.run("scrollTo(0, 0)")
    assert read_legend(browser, "Throughput") == {"step": "8", "baseline": "1,008 tok/s", "aux loss": "2,000 tok/s"}
    row = next(row for row in browser.all(".comparison tbody tr") if row.text.startswith("Throughput"))
    assert "1,008 tok/s" in row.text
    assert "2,000 tok/s +98 % better" in row.text
    option = browser.find('.finder [data-key="train_perf/tokens_per_second"]')
    option.click()
    assert "+98 % better" in option.text
    assert set(read_legend(browser, "All scalars")) == {"step", "baseline", "aux loss"}
    maps = browser.all(STEP_LAYER)
    assert len(maps) == 2
    assert find_hottest(read_cells(browser, LAYER_EXPERT, LAYERS, EXPERTS)) == HOT
    browser.click(maps[1], *find_centre(maps[1], 0, 3, LAYERS, 4))
    assert browser.text(".step") == "4"
    assert "aux loss" in browser.text('[aria-label="Layer × expert"] .note')
    assert find_hottest(read_cells(browser, LAYER_EXPERT, LAYERS, EXPERTS)) == FIRST_HOT


def test_names_and_configurations_stay_text(browser: Browser, tmp_path: Path) -> None:
    config = {"note": EVIL, EVIL: {"nested": [EVIL]}}
    exports = [export(1, {EVIL: 1.0, "loss": 2.0}, {(EVIL, 0): [1, 2], ("", 0): [1, 1]})]
    browser.open(build_page(tmp_path, exports, names=[EVIL], config=config))
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
    report = build_page(tmp_path, list(exports))
    paints = []
    for _ in range(3):  # a busy machine may slow one of them down
        browser.open(report)
        paints.append(browser.run("return performance.getEntriesByName('first-contentful-paint')[0].startTime"))
    assert min(paints) < 1000
