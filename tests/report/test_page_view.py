"""What a reader chooses on the page, and takes along: axes, smoothing, overlays, links, files. In a real Chromium."""

from __future__ import annotations

import csv
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from support.browser import Browser
from support.report_pages import build_page, plant_counts, read_legend
from support.report_runs import START, export, typical_metrics, write_run

from areal_callbacks.report import build_report

STEPS = 40
KEYS = {"noisy": 1.0, "other/noisy": 1.02, "big": 12_000.0, "timeperf/save": 1.4}


def value_of(key: str, step: int) -> float:
    """Alternating around ``KEYS[key]``."""
    return KEYS[key] * (1 + 0.5 * (-1) ** step)


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    exports = [
        export(step, {**typical_metrics(step, STEPS), **{key: value_of(key, step) for key in KEYS}}, plant_counts(step))
        for step in range(1, STEPS + 1)
    ]
    return build_page(tmp_path_factory.mktemp("noisy"), exports, names=['run "a", b'])


def choose_scalar(page: Browser, words: str) -> None:
    search = page.find("input[type=search]")
    search.clear()
    search.send_keys(words)


def test_lines_lie_over_steps_tokens_or_hours(browser: Browser, noisy: Path) -> None:
    browser.open(noisy)
    chart = browser.find('[aria-label="Throughput"] .chart')
    axes = {button.text: button for button in browser.all(".toolbar .segments button")}
    assert list(axes) == ["step", "tokens", "hours"]
    axes["tokens"].click()
    chart.send_keys(Keys.HOME, Keys.ARROW_RIGHT)
    total = typical_metrics(2, STEPS)["train_perf/total_tokens"]
    assert read_legend(browser, "Throughput")["tokens"] == f"{total / 1000:.3g} k (step 2)"
    browser.all(".toolbar .segments button")[2].click()
    chart.send_keys(Keys.END)
    assert re.fullmatch(r"[\d,.]+ h \(step 40\)", read_legend(browser, "Throughput")["hours"])
    over = browser.find('[aria-label="Throughput"] .u-over')
    browser.click(over, over.size["width"] / 2, 40)
    assert 18 <= int(browser.text(".step")) <= 23
    browser.wait(lambda: "x=hours" in browser.driver.current_url)


def test_hours_are_those_since_the_start(browser: Browser, tmp_path: Path) -> None:
    file = write_run(tmp_path, [export(step, {"loss": 1.0}) for step in (3600, 7200, 18000)])
    first, rest = file.read_text().split("\n", 1)
    file.write_text(re.sub(r'"time": [\d.]+', f'"time": {START}', first) + "\n" + rest)
    browser.open(build_report([file], tmp_path / "report.html"), view="#x=hours")
    assert read_legend(browser, "Loss")["hours"] == "5 h (step 18,000)"
    browser.find('[aria-label="Loss"] .chart').send_keys(Keys.HOME)
    assert read_legend(browser, "Loss")["hours"] == "1 h (step 3,600)"


def test_smooth_lines_run_through_the_middle(browser: Browser, noisy: Path) -> None:
    def height() -> int:
        """Of what is drawn in full colour."""
        pixels = np.array(browser.picture(browser.find('[aria-label="All scalars"] .u-over'))).astype(int)
        rows = np.where((pixels[..., 2] - pixels[..., 0] > 150).any(axis=1))[0]
        return int(rows[-1] - rows[0])

    browser.open(noisy)
    choose_scalar(browser, "other noisy")
    rough = height()
    browser.find('.toolbar input[type="range"]').send_keys(Keys.END)
    assert height() < 0.5 * rough
    assert read_legend(browser, "All scalars")["other/noisy"] == f"{value_of('other/noisy', STEPS):.4g}", "as recorded"


def test_any_series_lie_over_each_other(browser: Browser, noisy: Path) -> None:
    browser.open(noisy)
    choose_scalar(browser, "other noisy")
    choose_scalar(browser, " ")
    options = {str(option.get_attribute("data-key")): option for option in browser.all(".finder li")}
    for key in ("noisy", "big"):
        browser.run("arguments[0].scrollIntoView({block: 'center'})", options[key])
        ActionChains(browser.driver).key_down(Keys.CONTROL).click(options[key]).key_up(Keys.CONTROL).perform()
    chosen = {option.get_attribute("data-key") for option in browser.all('.finder li[aria-selected="true"]')}
    assert chosen == {"other/noisy", "noisy", "big"}
    assert list(read_legend(browser, "All scalars")) == ["step", "other/noisy", "noisy", "big (right)"]
    address = browser.wait(lambda: (url := browser.driver.current_url).count("scalar=") == 3 and url)
    browser.open(noisy, view=address[address.index("#") :])
    assert list(read_legend(browser, "All scalars")) == ["step", "other/noisy", "noisy", "big (right)"]


def test_a_link_shows_the_same_step_and_layer(browser: Browser, noisy: Path) -> None:
    browser.open(noisy, view="#step=17&layer=4")
    assert browser.text(".step") == "17"
    assert browser.find('[aria-label="Layer × expert"] select').get_attribute("value") == "4"
    browser.run("location.hash = '#step=9&layer=1'")
    browser.wait(lambda: browser.text(".step") == "9")
    assert "Experts of layer 1" in [heading.text for heading in browser.all("h3")]
    browser.open(noisy, view="#step=nonsense&layer=99&x=miles&smooth=7&scalar=none")
    assert browser.text(".step") == str(STEPS)


def read_table(file: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(file.read_text(encoding="utf-8").splitlines()))


def test_tables_and_pictures_can_be_taken_along(browser: Browser, noisy: Path, tmp_path: Path) -> None:
    def receive(name: str) -> Path:
        file = tmp_path / name
        browser.wait(lambda: file.is_file() and file.stat().st_size)
        return file

    browser.open(noisy)
    browser.save_downloads(tmp_path)
    browser.click(browser.find('[aria-label="all scalars as CSV"]'), 5, 5)
    rows = read_table(receive("run_a_b.csv"))
    assert [row["step"] for row in rows] == [str(step) for step in range(1, STEPS + 1)]
    assert {row["run"] for row in rows} == {'run "a", b'}
    for key in KEYS:
        assert all(math.isclose(float(row[key]), value_of(key, step), rel_tol=1e-6) for step, row in enumerate(rows, 1))
    browser.click(browser.find('[aria-label="Reward as CSV"]'), 5, 5)
    assert read_table(receive("Reward.csv"))[-1]["rollout/reward"] == "1"
    browser.click(browser.find('[aria-label="Step × layer as PNG"]'), 5, 5)
    picture = Image.open(receive("Step_layer.png")).convert("RGB")
    width = browser.find('[aria-label="Step × layer"]').size["width"]
    assert picture.width == 2 * width
    assert len(set(picture.resize((200, 100)).get_flattened_data())) > 50, "not empty"


def test_a_summary_is_copied(browser: Browser, noisy: Path) -> None:
    browser.open(noisy)
    button = browser.all(".toolbar > button")[0]
    button.click()
    browser.wait(lambda: button.text == "Copied")
    browser.run("document.body.append(document.createElement('textarea'))")
    field = browser.find("body > textarea")
    field.send_keys(Keys.CONTROL, "v")
    pasted = str(browser.wait(lambda: field.get_attribute("value")))
    assert pasted.startswith('run "a", b: steps 1–40, 6 layers × 16 experts')
    assert "- Throughput: 1,040 tok/s" in pasted
    assert "- no findings" in pasted or "- severe" in pasted or "- warning" in pasted


LIMITS = {"a": 7.4, "b": 12_600.0, "timeperf/c": 1.3, "timeperf/d": 5400.0, "e_fraction": 0.08, "f": 0.0031, "g": 1e13}
UNITS = {"k": 1e3, "T": 1e12, "h": 3600.0, "min": 60.0, "ms": 1e-3, "s": 1.0, "%": 0.01, "": 1.0}


def read_tick(text: str) -> float:
    match = re.fullmatch(r"(−?[\d,.]+) ?([^\d]*)", text)
    assert match, text
    return float(match[1].replace(",", "").replace("−", "-")) * UNITS[match[2]]


def test_ticks_are_as_far_apart_as_they_say(browser: Browser, tmp_path: Path) -> None:
    exports: list[Any] = [export(step, {key: top * step / 6 for key, top in LIMITS.items()}) for step in range(1, 7)]
    page = build_page(tmp_path, exports)
    for width in (1280, 390):
        browser.open(page, width=width)
        for key in LIMITS:
            browser.run("window.drawnTexts = []; location.hash = arguments[0]", f"#scalar={key.replace('/', '%2F')}")
            browser.wait(lambda: browser.text(".viewer h4") == key)  # noqa: B023 - waits within the loop
            ticks = sorted(map(read_tick, browser.drawn_texts("All scalars", align="right")))
            assert len(ticks) >= 2, key
            assert np.allclose(np.diff(ticks), ticks[1] - ticks[0], rtol=1e-9), (key, ticks)
