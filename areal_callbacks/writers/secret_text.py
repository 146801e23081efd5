"""Secrets inside of free text: URLs, command lines, headers, assignments in any language's notation.

What a text is, is not known here, so each notation is looked for everywhere. Every expression reads the text once: the
quantifiers are possessive or bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from areal_callbacks.writers.secret_names import (
    Secrecy,
    holds_secret,
    is_header,
    is_plain,
    is_secret_parameter,
    judge_name,
)
from areal_callbacks.writers.secret_shapes import hide_shapes

REDACTED = "[redacted]"

_URL = re.compile(r"(?<![A-Za-z0-9])[A-Za-z][\w+.-]{0,30}+(?:://|%3[Aa]%2[Ff]%2[Ff])[^\s'\"<>\\`]+")
# ``user:password@`` where the password may hold any character, but not ``host:8080/path@2x.png``; else ``token@``.
_USERINFO = re.compile(r"(\A[^:]++://)(?:[^\s@/:]*+:(?!\d+(?:[/?#]|$))\S*|[^/\s?#]+)@")
_ENCODED_USERINFO = re.compile(r"(?<=%3[Aa]%2[Ff]%2[Ff])(?:[^%]|%(?!2[Ff]|40))*+%40")
_SCHEMELESS = re.compile(r"(?<![\w/@:.-])([\w.+-]++:)([^\s@/:'\"]++)(?=@(?!sha\d)[\w-]++(?:\.[\w-]|:\d))")
_PARAMETER = re.compile(
    r"(?P<before>[?&;#]|%3[Ff]|%26)(?P<name>[\w.~-]++)(?P<equals>=|%3[Dd])"
    r"(?P<value>[^&#;%\s]*+(?:%(?!26|23|3[Ff])[^&#;%\s]*+)*)"
)
_WEBHOOK = re.compile(
    r"(hooks\.slack\.com/\w+/|discord(?:app)?\.com/api/webhooks/|webhook\.office\.com/webhookb2/"
    r"|/open-apis/bot/v2/hook/|api\.telegram\.org/bot)[^\s'\"<>?\[]+"
)
_BEARER = re.compile(r"(?i)(?<![\w-])(bearer|basic|negotiate|apikey)(\s++)([\w.~+/-]{6,}+=*+)")
_ONLY_BEARER = re.compile(r"(?i)(bearer)\s++([\w.~+/-]{8,}+=*+)")
_ELEMENT = re.compile(r"<(?P<name>[\w:.-]{1,100}+)(?P<rest>(?:\s[^<>]{0,200})?>)(?P<value>[^<]++)(?=</)")
_LOGIN = re.compile(r"(\bcurl\b[^\n]{0,200}?\s(?:-u|-U|--user|--proxy-user)[ =]?\s?[\"']?[^\s:\"']{1,100}:)[^\s\"']+")
_SSHPASS = re.compile(r"(\bsshpass\s++-p\s*+)\S+")
_NAME = re.compile(
    r"(?<![\w.-])(?P<flag>-{1,2}+)?(?P<name>[A-Za-z_][\w.-]{0,200}+)(?P<close>\\*+[\"'`]?+\]?+)"
    r"(?P<operator>\s*+(?:=>|:=|==|=|:|%3[Dd])[^\S\n]*+|(?(flag)[^\S\n]++(?![-\s])|(?!)))"
)
_QUOTED = re.compile(r"(?P<quote>\\*+[\"'`])(?:(?!(?P=quote))(?:\\.|.))*+", re.DOTALL)
_BRACKETED = re.compile(r"[\[({][^\])}]*+[\])}]?")
_BARE = re.compile(r"(?:\\[\"']|[^\s&;,'\"`<>)\]}\\]|\\)+")
_LINE = re.compile(r"[^\r\n]*+")
_REST_OF_QUOTE = re.compile(r"[^\r\n\"'`]*+")
_WORD = re.compile(r"\S*+")
_SCHEME = re.compile(r"(?i:(?:bearer|basic|token|digest|negotiate)\s++)?+[^\s\"'`]++")
_PROSE = re.compile(r"[A-Za-z]+(?:[ ,.]+[A-Za-z]+)+[.]?")


def redact_text(text: str) -> str:
    """``text`` with ``[redacted]`` in the place of every secret; everything else stays."""
    text = _URL.sub(lambda match: _redact_url(match[0]), text)
    text = _SCHEMELESS.sub(rf"\1{REDACTED}", text)
    text = _SSHPASS.sub(rf"\1{REDACTED}", _LOGIN.sub(rf"\1{REDACTED}", text))
    text = _ELEMENT.sub(_redact_element, text)
    return hide_shapes(_redact_bearers(_redact_named(text)), REDACTED)


def _redact_url(url: str) -> str:
    url = _ENCODED_USERINFO.sub(f"{REDACTED}%40", _USERINFO.sub(rf"\1{REDACTED}@", url))
    return _PARAMETER.sub(_redact_parameter, _WEBHOOK.sub(rf"\1{REDACTED}", url))


def _redact_parameter(match: re.Match[str]) -> str:
    if not is_secret_parameter(match["name"], match["value"]):
        return match[0]
    return f"{match['before']}{match['name']}{match['equals']}{REDACTED}"


def _redact_element(match: re.Match[str]) -> str:
    if not holds_secret(match["name"], match["value"]):
        return match[0]
    return f"<{match['name']}{match['rest']}{REDACTED}"


def _redact_bearers(text: str) -> str:
    if whole := _ONLY_BEARER.fullmatch(text.strip()):
        return text.replace(whole[2], REDACTED)
    return _BEARER.sub(lambda match: match[0] if is_plain(match[3]) else f"{match[1]}{match[2]}{REDACTED}", text)


def _redact_named(text: str) -> str:
    """Values of ``name=value``, ``name: value``, ``"name": "value"``, ``--name value`` whose name is a secret's."""
    pieces, position = [], 0
    for begin, end in _find_named(text):
        pieces += [text[position:begin], REDACTED]
        position = end
    return "".join([*pieces, text[position:]])


def _find_named(text: str) -> Iterator[tuple[int, int]]:
    """Where the values begin and end."""
    done = 0
    for match in _NAME.finditer(text):
        if match.start() < done or judge_name(match["name"]) is Secrecy.NONE:
            continue
        begin, end = _find_value(text, match)
        value = text[begin:end]
        if holds_secret(match["name"], value) and value != REDACTED and not _is_prose(text, match):
            yield begin, end
            done = end


def _find_value(text: str, match: re.Match[str]) -> tuple[int, int]:
    """The value after a name: what is quoted or bracketed, the line of a header, else as far as its notation goes."""
    begin = match.end()
    if quoted := _QUOTED.match(text, begin):
        return quoted.end("quote"), quoted.end()
    for pattern in (_pattern_of(text, match), _BARE):
        found = pattern.match(text, begin)
        if found and found.end() > begin:
            return begin, found.end()
    return begin, begin


def _pattern_of(text: str, match: re.Match[str]) -> re.Pattern[str]:
    if is_header(match["name"]) and ":" not in match["operator"]:
        return _SCHEME
    if is_header(match["name"]):
        return _REST_OF_QUOTE if text[max(0, match.start() - 1) : match.start()] in ("'", '"', "`") else _LINE
    if text[match.end() : match.end() + 1] in ("[", "(", "{"):
        return _BRACKETED
    if ":" in match["operator"] and _begins_line(text, match.start()):
        return _LINE
    is_whole = not text[: match.start()].strip() and (match["flag"] or match["name"].isupper())
    return _WORD if is_whole and match["operator"] == "=" else _BARE


def _begins_line(text: str, position: int) -> bool:
    before = text[max(0, position - 100) : position].rpartition("\n")[2]
    return not before.strip(" \t-")


def _is_prose(text: str, match: re.Match[str]) -> bool:
    """``token: the smallest unit of text`` explains a word."""
    if ":" not in match["operator"] or judge_name(match["name"]) is Secrecy.ALWAYS:
        return False
    line = _LINE.match(text, match.end())
    return line is not None and bool(_PROSE.fullmatch(line[0].strip()))
