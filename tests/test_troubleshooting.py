"""docs/troubleshooting.md lists every message that the package can print, and no other."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from support.messages import collect_from, collect_messages

PAGE = Path(__file__).parents[1] / "docs" / "troubleshooting.md"
_ROW = re.compile(r"^\| (?P<ticks>``?)(?P<message>.+?)(?P=ticks) \| (?P<cause>.+?) \| (?P<cure>.+?) \|$", re.MULTILINE)


def listed() -> list[str]:
    return [row["message"] for row in _ROW.finditer(PAGE.read_text())]


def test_page_lists_every_message_and_no_other() -> None:
    places = {message.text: f"{message.path}:{message.line}" for message in collect_messages()}
    page = set(listed())
    missing = {text: place for text, place in places.items() if text not in page}
    assert not missing, f"{PAGE.name} has no row for {missing}"
    assert not (gone := page - places.keys()), f"{PAGE.name} has rows for messages that the code lacks: {gone}"


def test_page_lists_each_message_once_with_cause_and_cure() -> None:
    assert not [message for message, number in Counter(listed()).items() if number > 1]
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    assert len(rows) == len(listed()) > 200  # each row has the form that is read here


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('raise ValueError(f"bad value: {value!r}")', ["bad value: …"]),
        ('ADVICE = "pass another one"\nraise ValueError(f"bad value; {ADVICE}")', ["bad value; pass another one"]),
        ('def f(path, problem):\n raise OSError(f"{path}: {problem}")\nf("a/b", "not a file")', ["not a file"]),
        ('raise ValueError(f"{path}: malformed {language}: {error}")', ["…: malformed …: …"]),
        ('def f(kind):\n raise OSError(f"expected {kind}")\nf("a whole number")', ["expected …"]),
        ('def f(x):\n p = f"no {x} here"\n warn(p)', ["no … here"]),
        ('def report_once(key, message): ...\nreport_once("my key", "it is gone")', ["it is gone"]),
        ('def attempt(key, problem):\n error(f"{problem}: {e!r}")\nattempt("my key", "it is gone")', ["it is gone"]),
        ('def f():\n yield "too few"\n yield "too many"\nsys.exit(next(f()))', ["too few", "too many"]),
        ('class A:\n notice: str\n def f(self): warn(f"{self.notice}: {1}")\nA("not sent")\nA("not read")',
         ["not read", "not sent"]),
        ('HOW = {1: "not at all", 2: "in part"}\nwarn(HOW[n])', ["in part", "not at all"]),
        ('print("not read", file=sys.stderr)\nprint("a long table")', ["not read"]),
        ('raise KeyError(name)\ntitle = "Tokens per second"', []),
    ],
)  # fmt: skip
def test_text_is_a_message_because_of_where_it_goes(source: str, expected: list[str]) -> None:
    assert collect_from(source) == expected
