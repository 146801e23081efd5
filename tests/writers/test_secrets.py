"""No secret survives in any disguise; what only looks like one stays."""

from __future__ import annotations

import json
import time

import pytest
from support.innocents import INNOCENTS
from support.secrets import (
    NAMES,
    TEXTS,
    disguise_bare,
    disguise_named,
    make_private_keys,
    make_tokens,
)

from areal_callbacks.writers.redact import REDACTED, redact

TOKENS = make_tokens()
PRIVATE_KEYS = make_private_keys()


def show(config: object) -> str:
    return json.dumps(redact({"x": config}), ensure_ascii=False)


def find_rest(secret: str, shown: str) -> list[str]:
    """Eight characters of the secret that are still there."""
    return [part for start in range(len(secret) - 7) if (part := secret[start : start + 8]) in shown]


def test_the_lists_are_long_enough() -> None:
    assert len({*TOKENS, *NAMES, *PRIVATE_KEYS, *(text for text, _ in TEXTS)}) >= 150
    assert len(set(INNOCENTS)) >= 150


@pytest.mark.parametrize("token", TOKENS, ids=[f"{token[:10]}{number}" for number, token in enumerate(TOKENS)])
def test_a_token_of_a_known_service_goes_wherever_it_stands(token: str) -> None:
    for config in disguise_bare(token):
        shown = show(config)
        assert REDACTED in shown, config
        assert find_rest(token[4:], shown) == [], config


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("secret", ["hunter2", "S3cr3t!x", "correcthorse", "0123456789abcdef0123456789abcdef01234567"])
def test_a_value_under_a_secret_name_goes_in_every_notation(name: str, secret: str) -> None:
    for config in disguise_named(name, secret):
        assert secret not in show(config), config


@pytest.mark.parametrize("name", NAMES)
def test_what_stands_beside_a_secret_stays(name: str) -> None:
    for config in disguise_named(name, "hunter2"):
        if "0.1" in str(config) and "Cookie" not in name and "uthorization" not in name:
            assert "0.1" in show(config), config


@pytest.mark.parametrize("key", PRIVATE_KEYS)
def test_a_private_key_goes_whole(key: str) -> None:
    for config in disguise_bare(key):
        assert "MIIE" not in show(config), config
    assert "MIIE" not in show({"pem": key.replace("\n", "\\n"), "lines": {"ssh_key": key.splitlines()}})


@pytest.mark.parametrize(("text", "secrets"), TEXTS)
def test_secrets_in_texts_of_known_notations_go(text: str, secrets: list[str]) -> None:
    for config in (text, [text], {"note": {"deep": text}}, json.dumps([text])):
        shown = show(config)
        assert [secret for secret in secrets if secret in shown] == []


@pytest.mark.parametrize("text", INNOCENTS)
def test_innocent_texts_stay_as_they_are(text: str) -> None:
    for name in ("x", "note", "model_name_or_path", "path"):
        assert redact({name: text}) == {name: text}
    assert redact({"x": [text, {"y": text}]}) == {"x": [text, {"y": text}]}
    assert redact({"argv": ["train.py", "--name", text, "--lr", "0.1"]})["argv"][2] == text
    assert redact({text: 1}) == {text: 1}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("pad_token", "<pad>"), ("eos_token", "</s>"), ("boundary_token", "<|x|>"),
        ("pooling_token", "cls"),
        ("sort_key", "step"), ("text_key", "prompt"), ("key", "eval/loss"), ("label_keys", ["a", "b"]),
        ("tokens", 4096),
        ("max_new_tokens", 128), ("forward_pass", "full"), ("hub_token", None), ("token", 50256), ("auth", False),
        ("PWD", "/work"), ("additional_special_tokens", ["<a>", "<b>"]), ("key_mapping", {"a": "b"}),
        ("password", "none"),
        ("signature_columns", ["input_ids"]), ("stop_token", "\n"), ("keys", {"key": "value"}), ("passes", 3),
    ],
)  # fmt: skip
def test_innocent_values_under_names_that_resemble_secret_ones_stay(name: str, value: object) -> None:
    assert redact({name: value}) == {name: value}


@pytest.mark.parametrize("name", ["key", "my_key", "join_token", "signature", "cache_keys"])
def test_a_name_that_may_be_a_secret_s_is_judged_by_its_value(name: str) -> None:
    secret = "0a1b2c3d4e5f60718293a4b5c6d7e8f901234567"
    assert redact({name: secret}) == {name: REDACTED}
    assert redact({name: "evaluation_loss"}) == {name: "evaluation_loss"}


def test_both_parts_of_a_pair_of_options_that_follow_each_other_stay_apart() -> None:
    argv = ["x", "--token", "--lr", "0.1", "--hub-token", "hunter2", "--password", 1234, "--n", "3"]
    assert redact({"argv": argv}) == {
        "argv": ["x", "--token", "--lr", "0.1", "--hub-token", REDACTED, "--password", REDACTED, "--n", "3"]
    }
    assert redact({"argv": ["curl", "-u", "me:hunter2", "x"]}) == {"argv": ["curl", "-u", f"me:{REDACTED}", "x"]}


class Refusing:
    def __str__(self) -> str:
        raise RuntimeError("no")


def test_objects_that_cannot_be_printed_are_named() -> None:
    assert redact({"x": Refusing(), "y": {Refusing(): 1}}) == {"x": "<Refusing>", "y": {"<Refusing>": 1}}


def nest(depth: int) -> list[object]:
    nested: list[object] = []
    for _ in range(depth):
        nested = [nested]
    return nested


def test_what_is_deep_or_refers_to_itself_many_times_stays_small_and_quick() -> None:
    bomb: list[object] = ["x"] * 9
    for _ in range(9):
        bomb = [bomb] * 9
    start = time.process_time()
    for config in ({"x": nest(5_000)}, {"x": bomb}, {"x": "y" * 10**8}, {"x": ["y" * 10**6] * 10**4}, {"n": 10**5_000}):
        assert len(json.dumps(redact(config))) < 8_000_000
    assert time.process_time() - start < 20


SLOW = [
    "a", " ", "\\", "-", ":", "x:", "a@", "://", "x://", "token=", "token ", "--token ", "<a>", "curl ", "{", "[",
    "a%", "'", '"', "eyJ", "eyJa.", "-----BEGIN PRIVATE KEY-----", "a_", "Bearer ", "sk-", "sk-a-", "x?a=%", "&a=",
    "=", "\n", "a:b@",
]  # fmt: skip


@pytest.mark.parametrize("unit", SLOW)
def test_no_text_takes_longer_than_in_proportion_to_its_length(unit: str) -> None:
    """Doubling a text that a backtracking expression would choke on at most triples the time; the limit is generous."""
    text = (unit * (60_000 // len(unit)))[:60_000]
    start = time.process_time()
    redact({"x": text, "y": text + "!"})
    assert time.process_time() - start < 5
