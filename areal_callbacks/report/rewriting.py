"""Rewrites report.html while the run goes on, in a process of its own.

A thread would not do: building takes seconds of Python, for which the training thread would wait at the interpreter's
lock. The other process needs no torch, takes 20 MB and half a second to start, and yields to everything else.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

from areal_callbacks.core.file_names import METRICS_FILE
from areal_callbacks.report.build import name_unfinished
from areal_callbacks.safety.reporting import report_once

_NICE = 10
_WAIT = 10.0
_PACKAGES = str(Path(__file__).parents[2])
_PROGRAM = f"""
import os, sys
if hasattr(os, "nice"):
    os.nice({_NICE})
packages, source, output, *names = sys.argv[1:]
sys.path.append(packages)
from areal_callbacks.report.build import build_report
build_report([source], output, names=names or None)
"""


class ReportRewriter:
    """Counts exports and builds the report after every ``every``-th, unless the build before is still going on.

    Args:
        folder: of metrics.jsonl.
        output: the report, which is replaced once the new one is complete.
        name: of the run; that of its folder if empty.
        every: exports between two builds.
    """

    def __init__(self, folder: Path, output: Path, name: str, every: int) -> None:
        self._arguments = [str(folder / METRICS_FILE), str(output), *([name] if name else [])]
        self._output = output
        self._every = every
        self._exports = 0
        self._lock = threading.Lock()
        self._stopped = False
        self._thread: threading.Thread | None = None
        self._process: subprocess.Popen[str] | None = None

    def count_export(self) -> None:
        """One more was written; waits for nothing."""
        self._exports += 1
        due = self._exports % self._every == 0
        if due and (self._thread is None or not self._thread.is_alive()):
            self._thread = threading.Thread(target=self._build, name="areal_callbacks report", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End a build that is going on, so that it cannot replace what comes after it."""
        with self._lock:
            self._stopped = True
            if self._process is not None and self._process.poll() is None:
                self._process.terminate()
        if self._thread is not None:
            self._thread.join(_WAIT)

    def _build(self) -> None:
        try:
            process = self._start()
            if process is not None:
                _, errors = process.communicate()
                self._tell(process, errors)
        except OSError as error:
            report_once(f"report: rewrite {self._output}", f"{self._output} is only written at the end: {error}")

    def _start(self) -> subprocess.Popen[str] | None:
        with self._lock:
            if self._stopped:
                return None
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, _PACKAGES, *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,  # an interrupt at the terminal is the training's
            )
            return self._process

    def _tell(self, process: subprocess.Popen[str], errors: str) -> None:
        if process.returncode == 0:
            return
        name_unfinished(self._output, process.pid).unlink(missing_ok=True)
        if not self._stopped:
            last = errors.strip().rpartition("\n")[2]
            report_once(f"report: rewrite {self._output}", f"{self._output} could not be rewritten: {last}")
