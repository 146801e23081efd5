"""The command as a user has it: a real server, a real Chromium, a run that goes on."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.browser import Browser
from support.report_pages import plant_counts, read_legend
from support.report_runs import export, typical_metrics, write_run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def address(folder: Path) -> Iterator[str]:
    """Of ``areal-callbacks watch``, which ends on Ctrl+C without a word."""
    start = "from areal_callbacks.cli import main; main()"
    command = [sys.executable, "-c", start, "watch", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
        server.send_signal(signal.SIGINT)
        _, errors = server.communicate(timeout=30)
        assert (server.returncode, errors) == (0, "")


def write(folder: Path, first: int, last: int) -> None:
    write_run(folder, [export(step, typical_metrics(step, 30), plant_counts(step)) for step in range(first, last + 1)])


def test_the_page_follows_the_run(browser: Browser, folder: Path, address: str) -> None:
    browser.driver.get(address)
    browser.wait(lambda: "nothing recorded" in browser.text(".facts"))
    write(folder, 1, 8)
    browser.wait(lambda: "steps 1–8" in browser.text(".facts"))
    browser.wait(lambda: read_legend(browser, "Throughput")["tokens/s"] == "1,008 tok/s")
    browser.wait(lambda: browser.text(".step") == "8")
    browser.wait(lambda: "live, updated" in browser.text(".live"))
    marker = "document.querySelector('[aria-label=\"Throughput\"] .uplot').dataset.kept"
    browser.run(f"{marker} = 'yes'")
    browser.run("location.hash = '#scalar=rollout%2Freward'")
    browser.wait(lambda: browser.text(".viewer h4") == "rollout/reward")
    browser.run("scrollTo(0, 900)")
    write(folder, 9, 20)
    browser.wait(lambda: "steps 1–20" in browser.text(".facts"))
    browser.wait(lambda: read_legend(browser, "Throughput")["tokens/s"] == "1,020 tok/s")
    assert browser.text(".step") == "20", "it shows the newest"
    assert browser.run(f"return {marker}") == "yes", "in place"
    assert browser.text(".viewer h4") == "rollout/reward"
    assert browser.run("return scrollY") == 900
    browser.run("location.hash = '#step=4'")
    browser.wait(lambda: browser.text(".step") == "4")
    (folder / "metrics.jsonl").rename(folder / "rotated.jsonl")
    write(folder, 1, 30)
    browser.wait(lambda: "steps 1–30" in browser.text(".facts"))
    assert browser.text(".step") == "4", "what was chosen stays"
    with (folder / "metrics.jsonl").open("a") as file:
        file.write("nonsense\n")
    browser.wait(lambda: "not a valid record" in browser.text(".live"))
    assert browser.errors() == []


def status_of(address: str, host: str | None = None) -> int:
    request = urllib.request.Request(address, headers={"Host": host} if host else {})
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_nobody_else_sees_it(folder: Path, address: str) -> None:
    write(folder, 1, 2)
    assert address.startswith("http://127.0.0.1:")
    root, token = address.rstrip("/").rsplit("/", 1)
    assert len(token) >= 22
    assert status_of(address) == 200
    for wrong in (f"{root}/", f"{root}/events", f"{root}/{'x' * len(token)}/", f"{root}/{token[:-1]}/events"):
        assert status_of(wrong) == 404
    assert status_of(address, host="rebound.example") == 400
    port = int(root.rsplit(":", 1)[1])
    other = socket.gethostbyname(socket.gethostname())
    with socket.socket() as elsewhere:
        elsewhere.settimeout(2)
        assert elsewhere.connect_ex((other if not other.startswith("127.") else "127.0.0.2", port)) != 0
