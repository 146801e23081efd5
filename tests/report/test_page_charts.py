"""The charts and the list of scalars on the page, in a real Chromium."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from selenium.webdriver.common.keys import Keys
from support.browser import Browser
from support.report_pages import LAYERS, STEPS, build_page, max_over_ideal, plant_counts, read_legend
from support.report_runs import export, typical_metrics


def test_the_charts_show_the_values_under_the_pointer(page: Browser) -> None:
    over = page.find('[aria-label="Throughput"] .u-over')
    page.hover(over, 0.5 * over.size["width"], 40)
    shown = page.wait(lambda: (found := read_legend(page, "Throughput"))["step"] in "67" and found)
    step = int(shown["step"])
    assert shown["tokens/s"] == f"{1000 + step:,} tok/s"
    assert read_legend(page, "Estimated FLOP/s")["step"] == str(step), "the pointers of the charts go together"
    assert read_legend(page, "MFU")["MFU"] == "25 %"
    timing = read_legend(page, "Time per optimizer step")
    assert timing["training"] == f"{(2 + step / STEPS) / 2:.3g} s"
    assert timing["optimizer"] == "250 ms"
    assert timing["rollout"] == f"{3 - step / STEPS:.3g} s"
    staleness = read_legend(page, "Staleness")
    assert staleness["theta avg"] == "1.5"
    assert staleness["proximal max"] == "4"


def test_a_click_in_a_chart_goes_to_that_step(page: Browser) -> None:
    over = page.find('[aria-label="Throughput"] .u-over')
    page.click(over, 2, 40)
    assert page.text(".step") == "1"


def test_the_tails_have_readable_decades(page: Browser) -> None:
    assert page.drawn_texts("Train/infer tails") >= {"10 %", "1 %", "0.1 %", "0.01 %", "0.001 %"}
    assert "0" not in page.drawn_texts("Train/infer tails")
    assert set(read_legend(page, "Train/infer tails")) == {"step", "k = 1.5", "k = 2", "k = 3", "k = 5", "k = 10"}
    assert read_legend(page, "Train/infer tails")["k = 2"] == "0.6 %"


def test_any_scalar_is_found(page: Browser) -> None:
    search = page.find("input[type=search]")
    search.send_keys("roll rew")
    visible = [option.get_attribute("data-key") for option in page.all(".finder li") if option.is_displayed()]
    assert visible == ["rollout/reward"]
    assert page.text(".viewer h4") == "rollout/reward"
    assert read_legend(page, "All scalars")["rollout/reward"] == "1"
    search.clear()
    search.send_keys("layer_4")
    assert page.text(".viewer h4") == "moe_balance/layer_4/max_over_ideal"
    shown = read_legend(page, "All scalars")["moe_balance/layer_4/max_over_ideal"]
    assert shown == f"{max_over_ideal(plant_counts(STEPS))[4]:.2f}×"
    search.clear()
    search.send_keys("train_perf")
    search.send_keys(Keys.ARROW_DOWN)
    chosen = page.find('.finder li[aria-selected="true"]').get_attribute("data-key")
    assert chosen == page.text(".viewer h4")
    assert chosen.startswith("train_perf/")
    assert len(page.all(".finder li")) == len(typical_metrics(1, 1)) + LAYERS


def test_numbers_that_are_not_finite(browser: Browser, tmp_path: Path) -> None:
    tail = "ppo_actor/train_infer/ratio_outside_2"
    values = {1: 0.01, 2: math.nan, 3: 0.02, 4: 0.0, 5: math.inf}
    counts = np.array([[0, 0], [1, 3]])
    exports = [export(step, {tail: value, "grad_norm": math.nan}, counts) for step, value in values.items()]
    browser.open(build_page(tmp_path, exports))
    assert "0" in browser.drawn_texts("Train/infer tails"), "zeros have a place on the log axis"
    chart = browser.find('[aria-label="Train/infer tails"] .chart')
    chart.send_keys(Keys.HOME)
    shown = [read_legend(browser, "Train/infer tails")["k = 2"]]
    for _ in range(4):
        chart.send_keys(Keys.ARROW_RIGHT)
        shown.append(read_legend(browser, "Train/infer tails")["k = 2"])
    assert shown == ["1 %", "NaN", "2 %", "0 %", "∞"]
    browser.find("input[type=search]").send_keys("grad_norm")
    assert read_legend(browser, "All scalars")["grad_norm"] == "NaN"
