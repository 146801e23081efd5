"""What messages show of values that nobody would want to read whole."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from areal_callbacks.config import MetricsConfig
from areal_callbacks.config.messages import show, show_key, suggest

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{below}'] * 9)}]\n" for below, name in zip("abcdefgh", "bcdefghi")
)
"""Nine levels of nine references each: 9⁹ leaves in 400 bytes."""


@pytest.mark.parametrize("value", [3, -1.5, True, None, "auto", [1, 2], {"a": 1}, ("x",), 10**30])
def test_short_values_are_shown_as_they_are(value: Any) -> None:
    assert show(value) == repr(value)


@pytest.mark.parametrize(
    ("value", "start"),
    [("x" * 10**7, "'xxx"), (list(range(10**6)), "[0, 1, 2"), (1 << 10**6, "an integer of 1000001 bits")],
    ids=["string", "list", "integer"],
)
def test_long_values_are_cut(value: Any, start: str) -> None:
    assert show(value).startswith(start)
    assert len(show(value)) <= 200


def test_keys_are_printable() -> None:
    assert show_key("every") == "every"
    assert show_key("größe") == "größe"
    assert show_key("\x1b[31mred") == "'\\x1b[31mred'"
    assert show_key("\u202eevery") == "'\\u202eevery'"  # turns the direction of a terminal's text
    assert show_key(3) == "3"
    assert len(show_key("k" * 10**6)) <= 200


def test_only_words_are_compared_with_the_choices() -> None:
    assert suggest("evry", ["every", "ppo"]) == "; did you mean 'every'?"
    assert suggest("x" * 10**6, ["every"]) == suggest(["every"], ["every"]) == ""


@pytest.mark.parametrize("key", ["every", "output_dir", "stats_logger", "moe_balance", "unknown"])
def test_a_message_about_a_small_file_is_quick_and_short(key: str, tmp_path: Path) -> None:
    (tmp_path / "bomb.yaml").write_text(BOMB.replace("i: &i", f"{key}: &i"))
    start = time.perf_counter()
    with pytest.raises(ValueError) as error:
        MetricsConfig.make(tmp_path / "bomb.yaml")
    assert time.perf_counter() - start < 5  # seconds; written out it would take hours
    assert len(str(error.value)) < 1000
