"""What messages show of text that others wrote."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_callbacks.safety.reporting import report_once
from areal_callbacks.safety.text import make_printable, tell_error, tell_number


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, größe 漢字", "plain, größe 漢字"),
        ("two\nlines", "two\nlines"),
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("\x07\r\x08", r"\x07\r\x08"),
        ("\u202eevil", r"\u202eevil"),
        ("\x9b2J", r"\x9b2J"),
        ("a\tb", r"a\tb"),
        (ValueError("x"), "x"),
    ],
)
def test_only_what_a_terminal_would_obey_is_escaped(text: object, shown: str) -> None:
    assert make_printable(text) == shown


@given(st.text(max_size=60), st.integers(1, 40))
def test_it_is_never_longer_than_asked_and_always_printable(text: str, longest: int) -> None:
    shown = make_printable(text, longest)
    assert len(shown) <= longest
    assert shown.replace("\n", "").isprintable()


def test_a_long_text_is_cut_with_an_ellipsis() -> None:
    assert make_printable("x" * 10**7, 10) == "x" * 9 + "…"
    assert make_printable("x" * 10, 10) == "x" * 10
    assert make_printable("\x1b" * 10, 10) == "\\x1b\\x1b\\" + "…"


def test_reports_are_short_and_printable(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "areal_callbacks")
    report_once("key", "cannot read \x1b]0;title\x07" + "x" * 10**6)
    (record,) = caplog.records
    assert record.getMessage().startswith(r"cannot read \x1b]0;title\x07xxx")
    assert len(record.getMessage()) <= 2_000


class Unprintable(Exception):  # noqa: N818
    def __repr__(self) -> str:
        raise RuntimeError("planted")

    __str__ = __repr__


def test_what_cannot_be_printed_is_named_by_its_type() -> None:
    assert tell_error(Unprintable()) == make_printable(Unprintable()) == "<Unprintable>"
    assert tell_error(ValueError("x")) == "ValueError('x')"


@pytest.mark.parametrize(
    ("number", "words"), [(0, "0 layers"), (1, "1 layer"), (2, "2 layers"), (1200, "1,200 layers")]
)
def test_one_is_singular(number: int, words: str) -> None:
    assert tell_number(number, "layer") == words
