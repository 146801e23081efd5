"""The series of the layers of a mixture of experts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from areal_callbacks.core.names import MAX_OVER_IDEAL, MOE_BALANCE
from areal_callbacks.findings.finding import Layer
from areal_callbacks.findings.history import ExportedHistory, Points, read_points

_KEY = re.compile(rf"{MOE_BALANCE}/(?:(?P<stack>.+)/)?layer_(?P<layer>\d{{1,6}})/{MAX_OVER_IDEAL}")


class LayerSeries(NamedTuple):
    """``max_over_ideal`` of one layer."""

    layer: Layer
    key: str
    points: Points


def read_layers(history: ExportedHistory) -> Iterator[LayerSeries]:
    """``max_over_ideal`` of every layer."""
    for key in history.series:
        match = _KEY.fullmatch(key)
        if match:
            yield LayerSeries(Layer(match["stack"] or "", int(match["layer"])), key, read_points(history, key))


def name_for_people(layer: Layer) -> str:
    """``layer 3``, ``layer 3 of encoder``."""
    return f"layer {layer.layer}" + (f" of {layer.stack}" if layer.stack else "")
