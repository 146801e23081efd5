"""A real Chromium without a display or a network, for the tests of the HTML report."""

from __future__ import annotations

import base64
import io
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.actions.action_builder import ActionBuilder
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
    "--force-device-scale-factor=1",
)
# What canvases write can be read in no other way.
_RECORD_TEXTS = """
    window.drawnTexts = [];
    const fillText = CanvasRenderingContext2D.prototype.fillText;
    CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
        const card = this.canvas.closest("section")?.getAttribute("aria-label") ?? "";
        window.drawnTexts.push([String(text), card, this.textAlign]);
        return fillText.call(this, text, ...rest);
    };
"""


class Browser:
    """One Chromium; ``open`` shows a page as a fresh visitor sees it."""

    def __init__(self, profile: Path) -> None:
        options = ChromeOptions()
        options.binary_location = shutil.which("chromium") or ""
        for flag in (*_FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = Chrome(options=options, service=Service(shutil.which("chromedriver")))
        self.driver.set_page_load_timeout(60)
        self.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": _RECORD_TEXTS})

    def open(self, page: Path, *, dark: bool = False, width: int = 1280, height: int = 1000, view: str = "") -> None:
        """Load and wait until the report is drawn; ``view`` is the part of the address that chooses one."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.prefer("dark" if dark else "light")
        self.driver.get("about:blank")  # else a view of the page that is open would not load it anew
        self.driver.get(page.resolve().as_uri() + view)
        self.wait(lambda: self.find("#report").get_attribute("aria-busy") == "false")

    def prefer(self, scheme: str) -> None:
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})

    def close(self) -> None:
        self.driver.quit()

    def find(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        """Also of what is not visible."""
        return str(self.find(selector).get_attribute("textContent"))

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def errors(self) -> list[str]:
        """What the console holds since the last call."""
        return [f"{entry['level']}: {entry['message']}" for entry in self.driver.get_log("browser")]

    def drawn_texts(self, card: str, align: str | None = None) -> set[str]:
        """What the canvases of a card have written since the page was loaded; labels of left axes align right."""
        drawn = self.run("return window.drawnTexts")
        return {text for text, where, aligned in drawn if where == card and align in (None, aligned)}

    def save_downloads(self, folder: Path) -> None:
        self.driver.execute_cdp_cmd("Page.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(folder)})

    def hover(self, element: WebElement, x: float, y: float) -> None:
        """Move the pointer to a point relative to the upper left corner."""
        self.run("arguments[0].scrollIntoView({block: 'center'})", element)
        middle = (element.size["width"] / 2, element.size["height"] / 2)
        ActionChains(self.driver, duration=0).move_to_element_with_offset(
            element, round(x - middle[0]), round(y - middle[1])
        ).perform()

    def click(self, element: WebElement, x: float, y: float) -> None:
        self.hover(element, x, y)
        ActionChains(self.driver, duration=0).click().perform()

    def picture(self, element: WebElement) -> Image.Image:
        """What the screen shows of an element, without the pointer on it."""
        self.run("arguments[0].scrollIntoView({block: 'center'})", element)
        mouse = ActionBuilder(self.driver, duration=0)
        mouse.pointer_action.move_to_location(1, 1)
        mouse.perform()
        return Image.open(io.BytesIO(base64.b64decode(element.screenshot_as_base64))).convert("RGB")

    def wait(self, condition: Callable[[], Any], seconds: float = 20) -> Any:
        """What ``condition`` returns once it is true; of a page that is just drawn anew it is false."""

        def judge() -> Any:
            try:
                return condition()
            except StaleElementReferenceException:
                return None

        deadline = time.monotonic() + seconds
        while not (value := judge()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {seconds} s; console: {self.errors()}")
            time.sleep(0.02)
        return value


def require_browser() -> None:
    """Skip the test where there is no Chromium; in CI, where no test may be left out, fail it."""
    if shutil.which("chromium") is not None and shutil.which("chromedriver") is not None:
        return
    message = "needs Chromium and its driver: apt-get install chromium chromium-driver"
    if os.environ.get("CI"):
        pytest.fail(message, pytrace=False)
    pytest.skip(message)
