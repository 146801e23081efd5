"""The expert loads on the page: heat maps, bars, and how they are reached, in a real Chromium."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from selenium.webdriver.common.keys import Keys
from support.browser import Browser
from support.report_pages import (
    DEAD,
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
    max_over_ideal,
    plant_counts,
    read_cells,
)
from support.report_runs import export, typical_metrics


def test_the_hot_and_the_dead_expert_are_seen(page: Browser) -> None:
    colours = read_cells(page, LAYER_EXPERT, LAYERS, EXPERTS)
    assert find_hottest(colours) == HOT
    assert colours[HOT][0] - colours[HOT][2] > 100
    assert tuple(np.argwhere(colours.sum(axis=2) < 30)[0]) == DEAD
    assert (colours.sum(axis=2) < 30).sum() == 1


def test_the_imbalanced_layer_is_seen_over_the_steps(page: Browser) -> None:
    darkness = -read_cells(page, STEP_LAYER, LAYERS, STEPS).sum(axis=2)
    assert darkness.argmax(axis=0).tolist() == [FIRST_HOT[0]] + [HOT[0]] * (STEPS - 1)


def test_hovering_tells_the_numbers(page: Browser) -> None:
    element = page.find(LAYER_EXPERT)
    counts = plant_counts(STEPS)
    for layer, expert in (HOT, DEAD, (0, 0), (LAYERS - 1, EXPERTS - 1)):
        page.hover(element, *find_centre(element, layer, expert, LAYERS, EXPERTS))
        count, total = counts[layer, expert], counts[layer].sum()
        text = page.text("#tip")
        assert f"layer {layer} · expert {expert}" in text
        assert f"{count * EXPERTS / total:.2f}× ideal" in text
        assert f"{100 * count / total:.3g}"[:4] in text
        assert f"{count} assignments" in text
    history = page.find(STEP_LAYER)
    page.hover(history, *find_centre(history, HOT[0], 5, LAYERS, STEPS))
    assert "step 6 · layer 2" in page.text("#tip")
    assert f"{max_over_ideal(plant_counts(6))[HOT[0]]:.2f}×" in page.text("#tip")
    page.hover(page.find("h1"), 1, 1)
    assert page.find("#tip").value_of_css_property("display") == "none"


def test_the_slider_changes_the_step(page: Browser) -> None:
    slider = page.find('.controls input[type="range"]')
    assert page.text(".step") == str(STEPS)
    slider.send_keys(Keys.HOME)
    assert page.text(".step") == "1"
    assert find_hottest(read_cells(page, LAYER_EXPERT, LAYERS, EXPERTS)) == FIRST_HOT
    slider.send_keys(Keys.ARROW_RIGHT)
    assert page.text(".step") == "2"
    assert find_hottest(read_cells(page, LAYER_EXPERT, LAYERS, EXPERTS)) == HOT


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
    page.click(element, *find_centre(element, FIRST_HOT[0], 0, LAYERS, STEPS))
    assert page.text(".step") == "1"
    assert page.all("h3")[3].text == f"Experts of layer {FIRST_HOT[0]}"
    assert f"busiest expert {FIRST_HOT[1]} ({max_over_ideal(plant_counts(1))[FIRST_HOT[0]]:.2f}× ideal)" in page.text(
        ".balance .stacked .card:nth-child(3) .note"
    )


def test_the_bars_tell_the_experts_of_the_layer(page: Browser) -> None:
    assert "dashed: the ideal load 6.25 %" in page.text(".balance .stacked .card:nth-child(3) .note")
    over = page.find(".bars .u-over")
    width = over.size["width"]
    page.hover(over, (HOT[1] + 0.6) * width / (EXPERTS + 0.2), over.size["height"] / 2)
    page.wait(lambda: "expert 11" in page.text("#tip"))
    assert "400 assignments" in page.text("#tip")
    picture = page.picture(over)
    bar = np.array(picture.getpixel((round((HOT[1] + 0.6) * width / (EXPERTS + 0.2)), over.size["height"] // 2)))
    assert bar[0] - bar[2] > 100


def test_a_dense_model_has_no_section_of_experts(browser: Browser, tmp_path: Path) -> None:
    browser.open(build_page(tmp_path, [export(step, typical_metrics(step, 5)) for step in range(1, 6)]))
    assert not browser.all(".heatmap")
    assert not browser.find(".balance").is_displayed()
    assert [heading.text for heading in browser.all("h3") if heading.is_displayed()][:2] == ["Reward", "Throughput"]


def test_layers_with_their_scalars_alone(browser: Browser, tmp_path: Path) -> None:
    exports = [
        export(step, {f"moe_balance/layer_{layer}/max_over_ideal": 1.0 + (layer == 10) for layer in (2, 10)})
        for step in (1, 2, 3)
    ]
    browser.open(build_page(tmp_path, exports))
    assert [heading.text for heading in browser.all("h3")] == ["Step × layer", "All scalars"]
    darkness = -read_cells(browser, STEP_LAYER, 2, 3).sum(axis=2)
    assert (darkness[1] > darkness[0]).all(), "layer 10 comes after layer 2"
    element = browser.find(STEP_LAYER)
    browser.click(element, *find_centre(element, 1, 2, 2, 3))
    assert "step 3 · layer 10" in browser.text("#tip")


def test_several_stacks_and_layers_of_different_width(browser: Browser, tmp_path: Path) -> None:
    counts = {("", 1): [10, 10], ("", 3): [1, 2, 1, 12], ("encoder", 0): [4, 0, 8]}
    browser.open(build_page(tmp_path, [export(step, {}, counts) for step in (1, 2)]))
    assert "2 layers × 2–4 experts" in browser.text(".facts")
    assert "encoder: 1 layer × 3 experts" in browser.text(".facts")
    assert [option.text for option in browser.all("select option")] == ["1", "3"]
    assert browser.all("h3")[2].text == "Experts of layer 3"
    element = browser.find(LAYER_EXPERT)
    browser.hover(element, *find_centre(element, 0, 3, 2, 4))
    assert "no such expert" in browser.text("#tip")
    browser.hover(element, *find_centre(element, 1, 3, 2, 4))
    assert "3.00× ideal" in browser.text("#tip")
    browser.all(".tabs button")[1].click()
    assert [option.text for option in browser.all("select option")] == ["0"]
    element = browser.find(LAYER_EXPERT)
    browser.hover(element, *find_centre(element, 0, 2, 1, 3))
    assert "2.00× ideal · 66.7 %" in browser.text("#tip")
