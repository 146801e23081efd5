"""The report of a run that is sick in known ways, as a reader has it for ten seconds, in a real Chromium."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.browser import Browser
from support.report_pages import LAYER_EXPERT, find_hottest, read_cells
from support.sick_run import EXPERTS, HOT, LAYERS, Sickness, write_sick_run

from areal_callbacks.findings import find
from areal_callbacks.report import build_report
from areal_callbacks.report.history import read_history


@pytest.fixture(scope="module")
def sick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sick")
    return build_report([write_sick_run(folder)], folder / "report.html", names=["sick"])


@pytest.fixture
def sick_page(browser: Browser, sick: Path) -> Iterator[Browser]:
    browser.open(sick)
    yield browser
    browser.prefer("light")


def test_the_strip_says_what_is_wrong(sick_page: Browser, sick: Path) -> None:
    page = sick_page
    found = find(read_history(sick.with_name("metrics.jsonl"), "sick"))
    items = page.all(".findings li")
    assert len(items) == len(found) == 4
    for item, finding in zip(items, found):
        assert finding.summary in item.text
        assert finding.advice in item.text
        assert item.find_element("css selector", ".badge").text == finding.severity
    top = page.run("return document.querySelector('.findings').getBoundingClientRect().bottom")
    assert top < 1000, "without scrolling"
    told = "\n".join(item.text for item in items)
    assert "layer 7: one expert takes" in told
    assert "12 experts in 1 layer are starved" in told
    assert "throughput is 26 % below" in told
    assert "mismatch has grown" in told
    tiles = {tile.text.split("\n")[0]: tile for tile in page.all(".tile")}
    assert "severe" in tiles["Worst max / ideal"].get_attribute("class")
    assert tiles["Worst max / ideal"].find_element("css selector", ".badge").text == "severe"
    assert "severe" not in tiles["Reward"].get_attribute("class")
    assert re.search(r"−2[5-7] % since start", tiles["Throughput"].text)
    assert "warning" in tiles["Throughput"].text
    labels = [
        [str(th.get_attribute("textContent")) for th in chart.find_elements("css selector", ".u-series th")]
        for chart in page.all(".chart:not(.bars)")
    ]
    assert all(len(set(own)) == len(own) for own in labels), "no name twice"
    assert set(labels[[own[1] for own in labels].index("k = 1.5")]) == {
        "step",
        "k = 1.5",
        "k = 2",
        "k = 3",
        "k = 5",
        "k = 10",
    }


def test_a_finding_leads_to_its_step_and_layer(sick_page: Browser, sick: Path) -> None:
    page = sick_page
    found = find(read_history(sick.with_name("metrics.jsonl"), "sick"))
    place, finding = next((k, one) for k, one in enumerate(found) if one.layer and one.layer.layer == HOT[0])
    to_place, to_series = page.all(".findings li")[place].find_elements("css selector", ".places a")
    page.find('select[aria-label="Layer"]').send_keys("2")
    address = str(to_place.get_attribute("href"))
    to_place.click()
    assert page.text(".step") == str(finding.step)
    assert page.find('select[aria-label="Layer"]').get_attribute("value") == str(HOT[0])
    assert find_hottest(read_cells(page, LAYER_EXPERT, LAYERS, EXPERTS)) == HOT
    page.wait(lambda: f"step={finding.step}&layer={HOT[0]}" in page.driver.current_url)
    assert address.endswith(f"#step={finding.step}&layer={HOT[0]}")
    to_series.click()
    assert page.text(".viewer h4") == finding.key


def test_a_healthy_run_says_so(browser: Browser, tmp_path: Path) -> None:
    file = write_sick_run(tmp_path, Sickness(steps=60, layers=2, experts=8))
    browser.open(build_report([file], tmp_path / "report.html"))
    assert "Nothing found" in browser.text(".healthy")
    assert "60 exports" in browser.text(".healthy")
    assert not browser.all(".badge")


CONTRASTS = """
    const numbers = (text) => (text.match(/[\\d.]+/g) ?? []).map(Number);
    const solid = (node) => {
        const layers = [];
        for (let at = node; at; at = at.parentElement) layers.push(numbers(getComputedStyle(at).backgroundColor));
        const blend = (below, [r, g, b, a = 1]) => below.map((v, k) => v * (1 - a) + [r, g, b][k] * a);
        return layers.reverse().reduce(blend, [255, 255, 255]);
    };
    const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    const light = (rgb) => rgb.map((v) => linear(v / 255))
        .reduce((sum, v, k) => sum + v * [0.2126, 0.7152, 0.0722][k], 0);
    const found = [];
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
        const node = texts.currentNode.parentElement;
        const shown = texts.currentNode.data.trim() && node.checkVisibility();
        if (!shown || node.closest("script, style, .unseen")) continue;
        const [a, b] = [light(numbers(getComputedStyle(node).color).slice(0, 3)), light(solid(node))];
        found.push([(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), texts.currentNode.data.trim().slice(0, 40)]);
    }
    const card = light(numbers(getComputedStyle(document.querySelector(".card")).backgroundColor));
    for (const line of document.querySelectorAll(".u-marker, .spark polyline")) {
        const style = getComputedStyle(line);
        const own = light(numbers(line.matches("polyline") ? style.stroke : style.borderBottomColor).slice(0, 3));
        found.push([1.5 * (Math.max(own, card) + 0.05) / (Math.min(own, card) + 0.05), "a line"]);
    }
    return found;
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_and_lines_can_be_told_from_their_ground(sick_page: Browser, scheme: str) -> None:
    """WCAG 2.2 AA: 4.5 for text, 3 for graphics, whose contrast is multiplied by 1.5 above."""
    sick_page.prefer(scheme)
    sick_page.run("document.querySelectorAll('details').forEach((one) => (one.open = true))")
    contrasts = sick_page.run(CONTRASTS)
    assert len(contrasts) > 300
    assert [entry for entry in contrasts if entry[0] < 4.5] == []
