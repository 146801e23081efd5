"""Trainings that are ended by random signals at random moments, and resumed until they are through."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from itertools import accumulate
from pathlib import Path

import torch
from soak.interrupted import EVERY
from support.subprocesses import search_path

from areal_callbacks.report.history import Series, read_history

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGKILL)
LIVES = 5
"""Of a training; the last one is left alone."""

STEPS = {"loop": 400, "transformers": 60}
TOLERANCE = {"loop": 0.0, "transformers": 1e-5}
"""Of weights: a Trainer that goes on from a checkpoint rounds otherwise, also without us; a step changes 1e-3."""

SECONDS_TO_END = 30


def soak(folder: Path, runs: int, seed: int = 0) -> dict[str, float]:
    """So many lives of trainings, under both hosts in turn.

    Raises:
        AssertionError: a process does not end in time or ends otherwise than its signal says, a line of metrics.jsonl
            cannot be read, a row's total is not that of the steps until there, or the weights are not those of a
            training without us and without signals.
    """
    choice, sent, begun, slowest = random.Random(seed), Counter[str](), time.perf_counter(), 0.0
    plain = {host: _Plain(host, folder / f"{host}-plain") for host in STEPS}
    for number in range(-(-runs // LIVES)):
        expected = plain[list(STEPS)[number % len(STEPS)]]
        training = _Measured(expected, folder / str(number))
        for _ in range(min(LIVES, runs - number * LIVES) - 1):
            which = choice.choice(SIGNALS)
            seconds = training.live(which, expected.seconds * choice.uniform(-0.05, 0.4))
            if seconds is not None:
                sent[which.name] += 1
                slowest = max(slowest, seconds)
        training.live(None, 0)
        training.check()
    return {"runs": runs, **sent, "slowest_end_seconds": slowest, "seconds": time.perf_counter() - begun}


class _Plain:
    """A training without us that no signal disturbs.

    Attributes:
        totals: tokens of all steps up to each.
        seconds: from the first step to the end of the process.
    """

    def __init__(self, host: str, folder: Path) -> None:
        self.host = host
        life = _Life(host, folder, "plain")
        life.wait_for_first_step()
        clock = time.perf_counter()
        assert (code := life.end(300)) == 0, (code, life.printed)
        self.seconds = time.perf_counter() - clock
        self.weights: dict[str, torch.Tensor] = torch.load(folder / "weights.pt")
        self.totals = [0, *accumulate(json.loads((folder / "tokens.json").read_text()))]


class _Life:
    """One process of a training."""

    def __init__(self, host: str, folder: Path, *options: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._begun, self._output = folder / "begun", folder / "output"
        self._begun.unlink(missing_ok=True)
        command = [sys.executable, "-m", "soak.interrupted", host, str(folder), str(STEPS[host]), *options]
        environment = {**os.environ, "PYTHONPATH": search_path()}
        with self._output.open("w") as output:
            self.process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)

    def wait_for_first_step(self) -> None:
        while self.process.poll() is None and not self._begun.exists():
            time.sleep(0.005)

    def end(self, seconds: float) -> int:
        """The exit code; a process that does not end in time is killed, and TimeoutExpired raised."""
        try:
            return self.process.wait(seconds)
        finally:
            self.process.kill()
            self.process.wait()

    @property
    def printed(self) -> str:
        return self._output.read_text()


class _Measured:
    """A training with us, over all its lives."""

    def __init__(self, expected: _Plain, folder: Path) -> None:
        self._expected, self._folder = expected, folder

    def live(self, sent: signal.Signals | None, moment: float) -> float | None:
        """Start or go on; the signal comes ``moment`` seconds after the first step, or if negative during the start.

        Returns:
            Seconds from the signal to the end of the process; None if it had ended before.
        """
        life = _Life(self._expected.host, self._folder)
        if moment < 0:
            time.sleep(min(-40 * moment, 5))  # while it starts
        else:
            life.wait_for_first_step()
            time.sleep(moment)
        clock = time.perf_counter()
        is_sent = sent is not None and life.process.poll() is None
        if sent is not None and is_sent:
            life.process.send_signal(sent)
        code = life.end(SECONDS_TO_END if is_sent else 300)
        seconds = time.perf_counter() - clock
        assert code in ((0, 75, -sent) if sent is not None and is_sent else (0,)), (code, sent, life.printed)
        assert "areal_callbacks" not in re.sub(r'File ".*', "", life.printed), life.printed
        self._check_rows()
        return seconds if is_sent else None

    def _check_rows(self) -> None:
        """No line but the last is torn, and every row has the total of the steps until there."""
        file = self._folder / "metrics.jsonl"
        for line in file.read_bytes().split(b"\n")[:-1] if file.exists() else ():
            json.loads(line)
        if file.exists():
            history = read_history(file, "")
            totals = history.series.get("train_perf/total_tokens", Series([], []))
            written = {history.steps[index]: total for index, total in zip(totals.indices, totals.values)}
            assert written == {step: self._expected.totals[step] for step in written}

    def check(self) -> None:
        """It is through, with the weights and all rows of an undisturbed training."""
        weights = torch.load(self._folder / "weights.pt")
        assert weights.keys() == self._expected.weights.keys()
        for name, expected in self._expected.weights.items():
            torch.testing.assert_close(weights[name], expected, rtol=0, atol=TOLERANCE[self._expected.host])
        history = read_history(self._folder / "metrics.jsonl", "")
        assert set(range(EVERY, STEPS[self._expected.host] + 1, EVERY)) <= set(history.steps)
        assert sum(history.series["train_perf/tokens"].values) == self._expected.totals[-1]
