"""Which kind of attention each decoder layer has.

The rules repeat what the architectures' configuration classes derive, for plain JSON that leaves ``layer_types`` out.
"""

from __future__ import annotations

from collections.abc import Callable

from areal_callbacks.flops.fields import Fields

FULL = "full_attention"
SLIDING = "sliding_attention"
LINEAR = "linear_attention"
CHUNKED = "chunked_attention"

Rule = Callable[[Fields, int], list[str]]
"""Takes the fields and the number of layers; returns the type of each layer."""


def uniform_window(fields: Fields, layers: int) -> list[str]:
    """All layers have the window if ``sliding_window`` is set (Mistral, Mixtral, Phi-3)."""
    return [FULL if fields.get("sliding_window") is None else SLIDING] * layers


def uniform_window_if_used(fields: Fields, layers: int) -> list[str]:
    """As :func:`uniform_window`, but ``use_sliding_window`` switches it on (Qwen3-MoE)."""
    return uniform_window(fields, layers) if fields.get("use_sliding_window") else [FULL] * layers


def full_every(interval: int, other: str, field: str = "") -> Rule:
    """Every ``interval``-th layer is full, the others are of type ``other``; ``field`` may hold another interval."""

    def rule(fields: Fields, layers: int) -> list[str]:
        period = fields.integer(field, default=interval, minimum=1) if field else interval
        return [other if (layer + 1) % period else FULL for layer in range(layers)]

    return rule


def window_from_layer(fields: Fields, layers: int) -> list[str]:
    """The layers from ``max_window_layers`` on have the window, if it is used (Qwen2, Qwen3)."""
    if not fields.get("use_sliding_window") or fields.get("sliding_window") is None:
        return [FULL] * layers
    first = fields.integer("max_window_layers")
    return [SLIDING if layer >= first else FULL for layer in range(layers)]


def window_every_other(fields: Fields, layers: int) -> list[str]:
    """The even layers below ``max_window_layers`` have the window, if it is used (Qwen2-MoE)."""
    if not fields.get("use_sliding_window"):
        return [FULL] * layers
    end = fields.integer("max_window_layers")
    return [SLIDING if layer % 2 == 0 and layer < end else FULL for layer in range(layers)]


def declared_or(rule: Rule) -> Rule:
    """``layer_types`` of the configuration if it has them, else ``rule``."""

    def types(fields: Fields, layers: int) -> list[str]:
        declared = fields.sequence("layer_types")
        if declared is None:
            return rule(fields, layers)
        if len(declared) != layers:
            raise fields.error(f"'layer_types' has {len(declared)} entries for {layers} layers")
        return list(declared)

    return types


def declared(fields: Fields, layers: int) -> list[str]:
    """``layer_types`` of the configuration, which must have them."""
    if fields.sequence("layer_types") is None:
        raise fields.error("the configuration lacks 'layer_types'")
    return declared_or(uniform_window)(fields, layers)


def cycle(name: str, kinds: dict[str, str]) -> Rule:
    """The list in field ``name``, repeated until every layer has an entry; ``kinds`` translates its words."""

    def rule(fields: Fields, layers: int) -> list[str]:
        pattern = fields.sequence(name)
        if not pattern:
            raise fields.error(f"the configuration lacks {name!r}")
        return [kinds.get(pattern[layer % len(pattern)], pattern[layer % len(pattern)]) for layer in range(layers)]

    return rule


def indexed(name: str, other: str) -> Rule:
    """Full attention in the layers that field ``name`` lists, ``other`` in the rest."""

    def rule(fields: Fields, layers: int) -> list[str]:
        listed = fields.sequence(name) or ()
        return [FULL if layer in listed else other for layer in range(layers)]

    return rule


def every(kind: str) -> Rule:
    """All layers of one kind."""
    return lambda fields, layers: [kind] * layers


def windowed_if_set(rule: Rule) -> Rule:
    """``rule``, but full layers have the window if ``sliding_window`` is set (MiniMax)."""

    def types(fields: Fields, layers: int) -> list[str]:
        full = FULL if fields.get("sliding_window") is None else SLIDING
        return [full if kind == FULL else kind for kind in rule(fields, layers)]

    return types
