"""One HTML file out of the template's sources, the vendored uPlot and the data."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

_SCRIPTS = (
    "format.js",
    "ticks.js",
    "theme.js",
    "elements.js",
    "view.js",
    "decode.js",
    "run.js",
    "loads.js",
    "smoothing.js",
    "marks.js",
    "chart.js",
    "chart_keys.js",
    "labels.js",
    "directions.js",
    "ends.js",
    "downloads.js",
    "panels.js",
    "panel_cards.js",
    "heatmap.js",
    "bars.js",
    "history.js",
    "experts.js",
    "balance.js",
    "explorer.js",
    "figures.js",
    "tiles.js",
    "comparison.js",
    "findings.js",
    "facts.js",
    "toolbar.js",
    "live.js",
    "main.js",
)


def render(data: Mapping[str, Any], title: str, *, live: int = 0) -> str:
    """The page.

    Args:
        data: what it draws; like ``title`` it stays text whatever it holds. Only the scripts of this package may run.
        title: of the window.
        live: the number of these data, from which on the page listens to the server that sent it; 0: it never does.
    """
    scripts = [_read("vendor", "uPlot.iife.min.js"), _join_scripts()]
    parts = {
        "title": html.escape(title),
        "policy": _write_policy(scripts, live=bool(live)),
        "licence": _read("vendor", "LICENSE"),
        "styles": "\n".join([_read("vendor", "uPlot.min.css"), _read("template", "style.css")]),
        "uplot": scripts[0],
        "data": dump_inert_json({**data, "live": live} if live else data),
        "application": scripts[1],
    }
    # One pass over the template: what was filled in is never looked at again.
    pieces = _read("template", "page.html").split("{{")
    return pieces[0] + "".join(_fill(piece, parts) for piece in pieces[1:])


def _fill(piece: str, parts: Mapping[str, str]) -> str:
    name, _, rest = piece.partition("}}")
    return parts[name] + rest


def _read(folder: str, name: str) -> str:
    return files("areal_callbacks.report").joinpath(folder, name).read_text(encoding="utf-8")


def _join_scripts() -> str:
    """The template's scripts share one scope, closed to the outside."""
    sources = "\n".join(_read("template", name) for name in _SCRIPTS)
    return f'(() => {{\n"use strict";\n{sources}\n}})();'


def _write_policy(scripts: list[str], live: bool) -> str:
    """Nothing is loaded, but data by a live page from its own server, and no other script runs."""
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" for script in scripts
    )
    connect = "connect-src 'self'; " if live else ""
    return f"default-src 'none'; {connect}script-src {hashes}; style-src 'unsafe-inline'; img-src data:"


def dump_inert_json(data: Mapping[str, Any]) -> str:
    """JSON without a character that could end the element it stands in."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
