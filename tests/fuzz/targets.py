"""What has to hold for any input, as functions of bytes: hypothesis calls them in the suite, atheris in `make fuzz`.

A target raises what a fault raises; a refusal by ValueError with a short, printable message is no fault.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from areal_callbacks.config import MetricsConfig
from areal_callbacks.config.files import parse_json
from areal_callbacks.report.history import read_history
from areal_callbacks.report.page import render
from areal_callbacks.report.payload import make_payload
from areal_callbacks.writers.metrics_file import read_metrics
from areal_callbacks.writers.redact import REDACTED, redact
from areal_callbacks.writers.torn_line import end_last_line

FOLDER = Path(tempfile.mkdtemp(prefix="areal_fuzz_"))
LONGEST_MESSAGE = 1_500
RUN = b'{"kind": "run", "version": 1, "time": 1, "config": {}}\n'


def check_refusal(error: ValueError) -> None:
    """A message may be long or hold what a terminal obeys nowhere."""
    text = str(error)
    assert len(text) <= LONGEST_MESSAGE, len(text)
    assert text.replace("\n", "").isprintable(), text


def fuzz_reader(data: bytes) -> None:
    """Any file is read or refused; what can be read makes a report; a file continues after its last line is ended."""
    path = FOLDER / "metrics.jsonl"
    path.write_bytes(RUN + data)
    try:
        records = list(read_metrics(path))
        page = render(make_payload([read_history(path, "run")]), "run")
        assert "</html>" in page
        end_last_line(path)
        assert path.read_bytes()[-1:] == b"\n"
        assert len(list(read_metrics(path))) == len(records)
    except ValueError as error:
        check_refusal(error)


def fuzz_yaml(data: bytes) -> None:
    """Any configuration file is a configuration, or refused."""
    path = FOLDER / "given.yaml"
    path.write_bytes(data)
    try:
        config = MetricsConfig.from_yaml(path)
    except ValueError as error:
        check_refusal(error)
    else:
        assert MetricsConfig.parse(config.to_dict()) == config


def fuzz_json(data: bytes) -> None:
    """Any JSON is a configuration, or refused."""
    try:
        MetricsConfig.make(parse_json(data, "given"))
    except ValueError as error:
        check_refusal(error)


def fuzz_redaction(data: bytes) -> None:
    """Any text, and any JSON, becomes JSON in which redacting again finds nothing, and every planted secret is gone."""
    text = data.decode(errors="replace")
    config: dict[str, Any] = {"text": text, text: 1, "argv": text.split(), "password": "Pl4ntedS3cret"}
    config["planted"] = [f"{text} --api-key Pl4ntedS3cret", f"{text}\npassword: Pl4ntedS3cret", text]
    with suppress(ValueError, RecursionError):
        config["document"] = json.loads(text)
    once = redact(config)
    shown = json.dumps(once, allow_nan=False)
    assert redact(once) == once
    assert once["password"] == REDACTED
    assert "Pl4ntedS3cret" not in shown or "Pl4ntedS3cret" in text


TARGETS: dict[str, Callable[[bytes], None]] = {
    "reader": fuzz_reader,
    "yaml": fuzz_yaml,
    "json": fuzz_json,
    "redaction": fuzz_redaction,
}

SEEDS: dict[str, list[bytes]] = {
    "reader": [
        b'{"kind": "metrics", "step": 1, "time": 1.5, "metrics": {"loss": 1, "a": "NaN"}}\n',
        b'{"kind": "expert_loads", "step": 1, "stack": "", "layers": [0], "experts": 2, "dtype": "uint32", '
        b'"counts": "eJxjZGBgYAJiAAAcAAQ="}\n',
        RUN + b'{"kind": "metrics", "step": 2, "time": 1, "metrics": {}}\n{"kind": "metr',
    ],
    "yaml": [
        b"every: 3\nmoe_balance: {expert_table_every: 2}\n",
        b"a: &a {x: 1}\nb: {<<: [*a, *a]}\n",
        b"stats_logger: {wandb: {mode: offline, tags: [a, b]}}\nflops: {peak_flops: 989e12}\n",
        b'? [a]\n: !!binary "YQ=="\n',
    ],
    "json": [b'{"every": 1, "moe_balance": {"extended": true}}', b'{"stats_logger": {"tensorboard": {"path": "x"}}}'],
    "redaction": [
        b'train.py --token abc Authorization: Bearer x "key": "y" https://u:p@h/?sig=1&k=2',
        b'{"api_key": "x", "list": [["Cookie", "a=b"]], "n": 1e999}',
        b"-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----\n<secret>x</secret>\npassword: a b",
    ],
}
