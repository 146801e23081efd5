"""The report of a run with planted loads, and what a reader sees of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from support.browser import Browser
from support.report_runs import write_run

from areal_callbacks.report import build_report

STEPS, LAYERS, EXPERTS = 12, 6, 16
HOT, DEAD = (2, 11), (4, 3)
FIRST_HOT = (5, 0)
STEP_LAYER, LAYER_EXPERT = '[aria-label="Step × layer"] .heatmap', '[aria-label="Layer × expert"] .heatmap'
LEFT, RIGHT, TOP, BOTTOM = 40, 1, 5, 20  # margins of a heatmap around its cells


def plant_counts(step: int) -> NDArray[np.int64]:
    """Nearly balanced loads with a dead expert, and a hot one that is another at the first step."""
    counts = 100 + np.arange(LAYERS * EXPERTS).reshape(LAYERS, EXPERTS) % 7
    counts[FIRST_HOT if step == 1 else HOT] = 400
    counts[DEAD] = 0
    return counts


def max_over_ideal(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    return counts.max(axis=1) / counts.mean(axis=1)


def build_page(folder: Path, *runs: list[Any], names: list[str] | None = None, config: Any = None) -> Path:
    files = [write_run(folder / f"run{number}", exports, config) for number, exports in enumerate(runs)]
    return build_report(files, folder / "report.html", names=names)


def find_centre(element: Any, row: int, column: int, rows: int, columns: int) -> tuple[float, float]:
    width, height = element.size["width"] - LEFT - RIGHT, element.size["height"] - TOP - BOTTOM
    return LEFT + (column + 0.5) * width / columns, TOP + (row + 0.5) * height / rows


def read_cells(browser: Browser, selector: str, rows: int, columns: int) -> NDArray[np.int64]:
    """Red, green, blue of the middle of every cell, ``[rows, columns, 3]``."""
    element = browser.find(selector)
    picture: Image.Image = browser.picture(element)
    centres = [[find_centre(element, row, column, rows, columns) for column in range(columns)] for row in range(rows)]
    return np.array([[picture.getpixel((round(x), round(y))) for x, y in row] for row in centres])


def find_hottest(colours: NDArray[np.int64]) -> tuple[int, ...]:
    """The cell with the strongest orange: the most red over blue."""
    return tuple(map(int, np.unravel_index((colours[..., 0] - colours[..., 2]).argmax(), colours.shape[:2])))


def read_legend(browser: Browser, title: str) -> dict[str, str]:
    entries = browser.all(f'[aria-label="{title}"] .u-series')
    parts = [
        [str(part.get_attribute("textContent")) for part in entry.find_elements("css selector", "th, td")]
        for entry in entries
    ]
    return dict(parts)
