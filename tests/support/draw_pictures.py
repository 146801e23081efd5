"""Draws the pictures of the documentation: numbers in health and not, the demo's console, a sick run's report.

PYTHONPATH=tests python -m support.draw_pictures docs/pictures
"""

from __future__ import annotations

import base64
import io
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from PIL import Image
from support.browser import Browser
from support.console_picture import draw_console, run_demo
from support.number_pictures import draw_all
from support.sick_run import SICK, write_sick_run

from areal_callbacks.report import build_report

COLOURS = 256
CONSOLE = "the console at the end of the demo"
PICTURES = {
    "report_light": {"width": 1280, "height": 1720},
    "report_dark": {"width": 1280, "height": 860, "dark": True},
    "report_narrow": {"width": 390, "height": 1500},
}


def main() -> None:
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    for picture, svg in draw_all():
        _write(target / picture, svg)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write(target / "console.svg", str(draw_console(run_demo(folder), CONSOLE, "areal-callbacks demo")))
        run = write_sick_run(folder / "run", replace(SICK, layers=24, experts=64))
        page = build_report([run], folder / "report.html", names=["qwen3-moe-grpo"])
        browser = Browser(folder / "profile")
        try:
            for picture, options in PICTURES.items():
                browser.open(page, **options)
                _save(browser, target / f"{picture}.png")
        finally:
            browser.close()


def _write(file: Path, svg: str) -> None:
    file.write_text(svg, encoding="utf-8")
    print(file, f"{file.stat().st_size / 1000:.0f} kB")


def _save(browser: Browser, file: Path) -> None:
    """With few colours, so that a picture takes some 100 kB."""
    shot = base64.b64decode(browser.driver.get_screenshot_as_base64())
    Image.open(io.BytesIO(shot)).convert("RGB").quantize(
        COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE
    ).save(file, optimize=True)
    print(file, f"{file.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
