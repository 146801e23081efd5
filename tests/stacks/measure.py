"""One command, counted without the package and under ``areal-callbacks run``."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from stacks.commands import Stack
from stacks.weights import hash_weights

from areal_callbacks.writers.jsonl import ExpertLoadsRecord, MetricsRecord, read_metrics

HERE = Path(__file__).resolve().parent
SECONDS = 1800
"""For one command; a minute where nothing else runs."""


class Counts(NamedTuple):
    """Of one run: trained tokens, assignments of each layer's experts, and a hash of what was saved."""

    tokens: int
    routed: list[list[int]]
    weights: str
    problem: str = ""


def fill(value: Any, names: dict[str, str]) -> Any:
    if isinstance(value, str):
        for name, text in names.items():
            value = value.replace("{" + name + "}", text)
        return value
    if isinstance(value, dict):
        return {key: fill(inner, names) for key, inner in value.items()}
    return [fill(inner, names) for inner in value] if isinstance(value, list) else value


def run(stack: Stack, place: Path, binaries: Path, inputs: Path, front: list[str], more: dict[str, str]) -> str:
    """The command in a working directory of its own; the end of what it said if it failed or never ended."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    names = {"inputs": str(inputs), "out": str(place / "out"), "bin": str(binaries), "port": free_port()}
    names |= {"scripts": str(HERE / "scripts"), "model": stack.model}
    for name, content in stack.files.items():
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text(
            yaml.safe_dump(fill(content, names)) if name.endswith("yaml") else json.dumps(fill(content, names))
        )
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "AREAL_CALLBACKS")}
    quiet = {
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "CUDA_VISIBLE_DEVICES": "",
    }
    quiet |= {"PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}", "AXOLOTL_DO_NOT_TRACK": "1", "DO_NOT_TRACK": "1"}
    variables = {**kept, **quiet, **fill(stack.variables, names), **more}
    words = [*front, *(fill(word, names) for word in stack.words)]
    code = _run_to_end(words, place, variables)
    return "" if code == 0 else f"exit {code}, see {place}/log.txt"


def _run_to_end(words: list[str], place: Path, variables: dict[str, str]) -> int:
    """With all that it started: a launcher that is ended leaves its workers."""
    with (place / "log.txt").open("w") as log:
        command = subprocess.Popen(words, cwd=place, env=variables, stdout=log, stderr=log, start_new_session=True)
        try:
            return command.wait(SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(command.pid, signal.SIGKILL)
            return command.wait()


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def count_without_us(stack: Stack, place: Path, binaries: Path, inputs: Path) -> Counts:
    counts = place.with_name(f"{place.name}-counts")
    shutil.rmtree(counts, ignore_errors=True)
    counts.mkdir(parents=True)
    problem = run(stack, place, binaries, inputs, [], {"PYTHONPATH": str(HERE / "counter"), "COUNTS": str(counts)})
    told = [json.loads(path.read_text()) for path in counts.glob("*.json")]
    layers = list(zip(*(one["routed"] for one in told), strict=False))
    routed = [[sum(experts) for experts in zip(*ranks, strict=True)] for ranks in layers]
    return Counts(sum(one["tokens"] for one in told), routed, hash_weights(place / "out"), problem)


def count_with_us(stack: Stack, place: Path, binaries: Path, inputs: Path) -> Counts:
    told = stack.with_plugin()
    front = [str(binaries / "areal-callbacks"), "run", "--no-report", "--"] if told == stack else []
    problem = run(told, place, binaries, inputs, front, {"PYTHONPATH": str(HERE.parents[1])})
    records = [record for file in place.rglob("metrics.jsonl") for record in read_metrics(file)]
    tokens = sum(int(one.metrics.get("train_perf/tokens", 0)) for one in records if isinstance(one, MetricsRecord))
    routed: dict[int, list[int]] = {}
    for one in records:
        if isinstance(one, ExpertLoadsRecord):
            for layer, counts in zip(one.layers, one.counts, strict=True):
                before = routed.get(layer, [0] * len(counts))
                routed[layer] = [sum(pair) for pair in zip(before, counts, strict=True)]
    return Counts(tokens, [routed[layer] for layer in sorted(routed)], hash_weights(place / "out"), problem)
