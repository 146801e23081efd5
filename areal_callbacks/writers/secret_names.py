"""Which names belong to secrets: keys of a configuration, options of a command line, headers, parameters of a URL.

The last word of a name decides: ``wandb_api_key`` and ``apiKey`` end in a key of an API, ``password_file`` in a file.
Three kinds of names remain: those that always hold a secret; those that do if they hold a text (a number under
``token`` is a token id); and those that do unless the value consists of plain words (``sort_key: "step"``).
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_BORDER = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|[^A-Za-z0-9]+")
_CHUNK = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|[0-9]+")
_LONGEST_WORD = 24
_LONGEST_NAME = 200

_SECRETS = _words(
    "password passwords passwd passphrase passcode secret secrets credential credentials creds authorization bearer "
    "auth oauth cookie cookies jwt apikey apikeys authkey secretkey accesskey privatekey accountkey sessionkey "
    "authtoken accesstoken refreshtoken csrftoken xsrftoken hftoken apitoken sshpass"
)
_GLUED = re.compile(r".*(password|passwd|passphrase|apikey|secretkey|accesskey|privatekey|authtoken|accesstoken)s?")
_OF_SECRETS = _words("value hash hashed plain plaintext encoded base64 b64 raw string header")

_SERVICES = _words(
    "access account admin anthropic api app auth aws azure bot ci client cloud cohere comet consumer database datadog "
    "db dd deploy deployment device docker encryption fireworks gcp gemini gh git github gitlab google groq hf hub "
    "huggingface id jupyter jwt kaggle license login ltai master mistral modelscope mongo mysql nebius neptune ngc npm "
    "nvidia oauth openai openrouter personal pg postgres private proxy push pypi redis refresh registry replicate root "
    "runpod sas secret security serper service session shared signing slack smtp snowflake ssh sso storage sts "
    "subscription swanlab tavily telegram together trackio upload user vault wandb webhook write xai zhipu"
)
_STEPS = _words(
    "forward backward first second third one two single multi per num n each last final high low band full fwd bwd "
    "micro by max min train eval"
)
# Words before ``token`` that name an entry of a tokenizer's vocabulary, or a unit of text.
_VOCABULARY = _words(
    "pad eos bos unk sep cls mask eot boi eoi eom image img video audio vision speech start end begin stop special "
    "next per prefix middle suffix fim think tool mention placeholder"
)
_VOCABULARY_ENTRY = re.compile(r"\s*|<.{0,60}>|\[.{0,60}\]|\{.{0,60}\}|[▁Ġ#]+\S{0,30}", re.DOTALL)
_SWITCH = _words("true false none null yes no on off auto")

_HEADERS = frozenset(("authorization", "cookie", "cookies"))
_PARAMETERS = _words("sig sign signature hmac credential awsaccesskeyid googleaccessid hdnts hdnea jwt")
_PARAMETERS_UNLESS_PLAIN = _words("key code ticket otp policy sid pw state session sessionid")


class Secrecy(enum.Enum):
    """What the name of a value says about it."""

    NONE = enum.auto()
    UNLESS_PLAIN = enum.auto()
    TEXT = enum.auto()
    ALWAYS = enum.auto()


def judge_name(name: str) -> Secrecy:
    """What a key, option or header called ``name`` holds."""
    words = _split(name)
    if not words:
        return Secrecy.NONE
    last, before = words[-1], words[-2] if len(words) > 1 else ""
    if last in _SECRETS or _GLUED.fullmatch(last):
        return Secrecy.ALWAYS
    judge = _JUDGES.get(last)
    return judge(before) if judge else Secrecy.NONE


def holds_secret(name: str, value: object) -> bool:
    """Whether a value that is no container is a secret because of its name.

    None, a bool and words such as "none" only say whether there is a secret: they stay.
    """
    if value is None or isinstance(value, bool) or (isinstance(value, str) and is_switch(value)):
        return False
    secrecy = judge_name(name)
    if secrecy in (Secrecy.ALWAYS, Secrecy.NONE):
        return secrecy is Secrecy.ALWAYS and not _is_folder(name, value)
    if not isinstance(value, str) or value.strip().isdigit() or _VOCABULARY_ENTRY.fullmatch(value):
        return False
    return secrecy is Secrecy.TEXT or not is_plain(value)


def is_secret_parameter(name: str, value: str) -> bool:
    """Whether ``name=value`` in a URL gives access: also signatures and the short names that services use."""
    words = _split(name)
    last = words[-1] if words else ""
    if last in _PARAMETERS or "".join(words) in _PARAMETERS:
        return True
    return holds_secret(name, value) or (last in _PARAMETERS_UNLESS_PLAIN and not is_plain(value))


def is_header(name: str) -> bool:
    """Whether the value of this header is the whole rest of its line."""
    return _split(name)[-1:] != [] and _split(name)[-1] in _HEADERS


def is_switch(text: str) -> bool:
    """Whether a text says only that something is there or not."""
    return text.strip().lower() in _SWITCH or not text.strip()


def is_plain(text: str) -> bool:
    """Whether a text consists of words and numbers as people write them: few changes of case, few digits inside."""
    return all(map(_is_plain_piece, re.split(r"[^A-Za-z0-9]+", text)))


def count_chunks(text: str) -> int:
    """The number of words and numbers that ``text``, without separators, reads as: ``Qwen3Moe`` has three."""
    return sum(1 for _ in _CHUNK.finditer(text))


def _is_plain_piece(piece: str) -> bool:
    chunks = _CHUNK.findall(piece)
    return len(chunks) <= 2 + len(piece) // 4 and max(map(len, chunks), default=0) <= _LONGEST_WORD


def _split(name: str) -> list[str]:
    """Lower-case words, without what only numbers or describes a secret: ``token_2``, ``password_hash``."""
    words = [word.lower() for word in _BORDER.split(name[-_LONGEST_NAME:]) if word]
    while len(words) > 1 and (words[-1].isdigit() or words[-1] in _OF_SECRETS):
        words.pop()
    return [*words[:-1], words[-1].rstrip("0123456789") or words[-1]] if words else []


def _is_folder(name: str, value: object) -> bool:
    """``PWD`` is the working directory in every environment, a password elsewhere."""
    return _split(name)[-1] == "pwd" and isinstance(value, str) and value[:1] in ("/", "~", ".")


def _judge_key(before: str) -> Secrecy:
    return Secrecy.ALWAYS if before in _SERVICES else Secrecy.UNLESS_PLAIN


def _judge_token(before: str) -> Secrecy:
    if before in _VOCABULARY:
        return Secrecy.NONE
    return Secrecy.TEXT if not before or before in _SERVICES else Secrecy.UNLESS_PLAIN


def _judge_tokens(before: str) -> Secrecy:
    return Secrecy.TEXT if before in _SERVICES else Secrecy.NONE


def _judge_pass(before: str) -> Secrecy:
    if before in _STEPS:
        return Secrecy.NONE
    return Secrecy.ALWAYS if before else Secrecy.TEXT


_JUDGES: dict[str, Callable[[str], Secrecy]] = {
    "key": _judge_key,
    "keys": _judge_key,
    "token": _judge_token,
    "tokens": _judge_tokens,
    "pass": _judge_pass,
    "pwd": lambda _: Secrecy.ALWAYS,
    "signature": lambda _: Secrecy.UNLESS_PLAIN,
    "sig": lambda _: Secrecy.UNLESS_PLAIN,
}
