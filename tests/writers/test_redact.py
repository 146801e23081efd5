"""Secrets leave a configuration; everything else stays, as JSON."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_callbacks.writers.redact import REDACTED, redact

SECRET_KEYS = [
    "api_key", "wandb_api_key", "API_KEY", "apiKey", "openai-api-key", "password", "db_password", "secret",
    "client_secret", "aws_secret_access_key", "hub_token", "hf_token", "access_token", "push_to_hub_token", "token",
    "private_key", "authorization", "accessToken", "api_keys", "db_pwd", "bearer", "secrets",
]  # fmt: skip
PLAIN_KEYS = [
    "max_tokens", "max_new_tokens", "pad_token", "eos_token", "bos_token", "unk_token", "sep_token", "cls_token",
    "mask_token", "image_token", "decoder_start_token", "additional_special_tokens", "tokenizer", "token_count",
    "secretary", "password_length", "key", "api_keys_file", "monkey", "tokens", "vision_start_token",
]  # fmt: skip


@pytest.mark.parametrize("key", SECRET_KEYS)
def test_secret_keys_lose_their_value_at_any_depth(key: str) -> None:
    assert redact({key: "s3cr3t"}) == {key: REDACTED}
    assert redact({"a": [{"b": ({key: "s3cr3t"},)}]}) == {"a": [{"b": [{key: REDACTED}]}]}


@pytest.mark.parametrize("key", PLAIN_KEYS)
def test_other_keys_keep_their_value(key: str) -> None:
    assert redact({key: "value"}) == {key: "value"}


@pytest.mark.parametrize("value", [None, True, False, ""])
def test_what_only_says_whether_there_is_a_secret_stays(value: Any) -> None:
    assert redact({"hub_token": value, "password": value}) == {"hub_token": value, "password": value}


def test_a_number_under_a_token_key_is_a_token_id_but_a_numeric_password_is_one() -> None:
    assert redact({"forced_token": 50256, "password": 1234}) == {"forced_token": 50256, "password": REDACTED}


def test_a_whole_section_of_secrets_goes() -> None:
    assert redact({"credentials": {"user": "me", "key": "x"}}) == {"credentials": REDACTED}


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://user:pass@host/path?x=1", "https://[redacted]@host/path?x=1"),
        ("postgres://u:p@ss@db:5432/n", "postgres://[redacted]@db:5432/n"),
        ("https://ghp_abc@github.example/x", "https://[redacted]@github.example/x"),
        ("https://host/path@2x.png", "https://host/path@2x.png"),
        ("mail me@example.org", "mail me@example.org"),
    ],
)
def test_userinfo_leaves_urls(url: str, expected: str) -> None:
    assert redact({"remote": url, "list": [f"git clone {url}"]}) == {
        "remote": expected,
        "list": [f"git clone {expected}"],
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("train.py --hub_token=s3cr3t --lr=0.1", "train.py --hub_token=[redacted] --lr=0.1"),
        ("WANDB_API_KEY=s3cr3t python x", "WANDB_API_KEY=[redacted] python x"),
        ("https://h/x?token=s3cr3t&step=1", "https://h/x?token=[redacted]&step=1"),
        ("hf_" + "aB3" * 12, "[redacted]"),
        ("use sk-proj-" + "aB3_" * 10, "use [redacted]"),
        ("--max_tokens=512 tokenizer=bpe", "--max_tokens=512 tokenizer=bpe"),
        ("hf_trainer_moe and sk-learn", "hf_trainer_moe and sk-learn"),
    ],
)
def test_secrets_inside_of_texts_go(text: str, expected: str) -> None:
    assert redact({"argv": [text]}) == {"argv": [expected]}
    assert redact(redact({"argv": text})) == {"argv": expected}


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Inner:
    path: Path
    api_key: str = "s3cr3t"


def test_what_json_cannot_hold_becomes_what_it_can() -> None:
    config = {
        "nan": float("nan"), "infinity": [float("inf"), float("-inf")], "path": Path("a/b"), "set": {"b", "a"},
        "enum": Colour.RED, "inner": Inner(Path("c")), 3: np.float32(0.5), "int": np.int64(7), "type": int,
    }  # fmt: skip
    assert redact(config) == {
        "nan": "NaN", "infinity": ["Infinity", "-Infinity"], "path": "a/b", "set": ["a", "b"],
        "enum": "red", "inner": {"path": "c", "api_key": REDACTED}, "3": 0.5, "int": 7, "type": "<class 'int'>",
    }  # fmt: skip


def test_a_mapping_that_contains_itself_ends() -> None:
    config: dict[str, Any] = {"a": 1}
    config["self"] = config
    json.dumps(redact(config))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), VALUES))
def test_the_result_is_strict_json_and_redacting_again_changes_nothing(config: dict[str, Any]) -> None:
    once = redact(config)
    json.dumps(once, allow_nan=False)
    assert redact(once) == once
