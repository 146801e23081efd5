"""The pictures of the documentation: drawn by scripts, of what they say, readable, small, and shown with a text."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support.console_picture import draw_console, read_summary
from support.number_pictures import LINES, ONSET, draw_all, simulate
from support.svg import DARK, LIGHT, Svg

from areal_callbacks.findings import RULES, find

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "pictures"
PAGE = (ROOT / "docs" / "reading_the_numbers.md").read_text()
PAGES = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
SVG = "{http://www.w3.org/2000/svg}"
DRAWN = dict(draw_all())
ONLY_THERE = {"report_narrow.png"}
"""Shown to nobody but those who change the report."""


@pytest.mark.parametrize("name", sorted(DRAWN))
def test_picture_is_what_its_script_draws(name: str) -> None:
    assert (FOLDER / name).read_text() == DRAWN[name], "run `make pictures`"


def test_healthy_run_has_no_finding_and_sick_ones_have_theirs() -> None:
    assert find(simulate().history()) == []
    for drawn in LINES.values():
        found = find(simulate(drawn.rule).history())
        assert {one.rule for one in found} == {drawn.rule}
        assert all(one.step > 10 * ONSET for one in found)


def test_curve_has_one_point_per_export_at_the_height_of_its_value() -> None:
    """The top and the foot of the plot are those of its outermost grid lines."""
    for name, drawn in LINES.items():
        lines = list(ElementTree.fromstring(DRAWN[f"{name}.svg"]).iter(f"{SVG}polyline"))
        (curve,) = [line for line in lines if line.get("class") == "good-line"]
        grid = [float(line.attrib["points"].split(",")[-1]) for line in lines if line.get("class") == "grid"]
        texts = [text.text for text in ElementTree.fromstring(DRAWN[f"{name}.svg"]).iter(f"{SVG}text")]
        top = max(float(text.replace(",", "")) for text in texts[2:5] if text)
        values = drawn.read(simulate())
        points = [float(point.split(",")[1]) for point in curve.attrib["points"].split()]
        expected = [max(grid) - value / top * (max(grid) - min(grid)) for value in values]
        assert points == pytest.approx(expected, abs=0.06)


def test_pictures_are_small_and_shown_with_a_text() -> None:
    shown = {
        (page.parent / path).resolve(): words
        for page in PAGES
        for words, path in re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", page.read_text())
    }
    pictures = {path for path in FOLDER.iterdir() if path.name not in ONLY_THERE}
    assert shown.keys() == pictures
    assert min(len(words) for words in shown.values()) > 20
    assert max(path.stat().st_size for path in FOLDER.glob("*.svg")) < 20_000


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.svg")), ids=lambda path: path.name)
def test_svg_is_whole_and_loads_nothing(path: Path) -> None:
    root = ElementTree.fromstring(path.read_text())
    assert root.find(f"{SVG}title") is not None
    assert re.findall(r"https?://|url\(|@import|<script", path.read_text()) == ["http://"]  # the name of the format
    width = float(root.attrib["width"])
    for text in root.iter(f"{SVG}text"):
        assert len(text.text or "") * 6 < width


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_texts_have_contrast(colours: dict[str, str]) -> None:
    """WCAG 2.1: at least 4.5 to 1."""
    paper = _luminance(colours["paper"])
    for name in ("ink", "faint", "good", "bad"):
        low, high = sorted((paper, _luminance(colours[name])))
        assert (high + 0.05) / (low + 0.05) >= 4.5, name


def _luminance(colour: str) -> float:
    channels = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_page_leads_to_every_finding() -> None:
    assert set(re.findall(r"findings\.md#(\w+)", PAGE)) == RULES.keys()


def test_console_picture_is_of_the_demo() -> None:
    texts = [
        text.text or "" for text in ElementTree.fromstring((FOLDER / "console.svg").read_text()).iter(f"{SVG}text")
    ]
    assert texts[0] == "$ areal-callbacks demo"
    assert texts[1] == "AReaL metrics, step 60"
    assert {"Files", "Findings"} <= set(texts)
    assert texts[-1] == "Open this file in a browser: demo_output/areal_metrics/report.html"


def test_console_picture_holds_the_text_as_it_stands() -> None:
    output = "{'loss': 1}\n\nAReaL metrics, step 2\na  <&>  1\nlast\n"
    svg = draw_console(read_summary(output), "title", "command")
    texts = [text.text for text in ElementTree.fromstring(str(svg)).iter(f"{SVG}text")]
    assert texts == ["$ command", "AReaL metrics, step 2", "a  <&>  1", "last"]
    with pytest.raises(ValueError, match="no summary"):
        read_summary("Killed\n")


def test_rectangles_and_lines_are_where_they_are_put() -> None:
    svg = Svg(10, 10, "t")
    svg.rectangle(1, 2, 3.04, 4, "good")
    svg.line([(0, 0), (1.25, 9)], "ink-line")
    root = ElementTree.fromstring(str(svg))
    assert root.findall(f"{SVG}rect")[1].attrib == {"x": "1", "y": "2", "width": "3", "height": "4", "class": "good"}
    (line,) = root.iter(f"{SVG}polyline")
    assert line.attrib["points"] == "0,0 1.2,9"
