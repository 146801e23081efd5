"""Where a router stands: its layer and its stack, from the name of its module."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

_WRAPPERS = (
    # DDP and FSDP1, torch.compile, checkpoint_wrapper
    r"module|_fsdp_wrapped_module|_orig_mod|_checkpoint_wrapped_module"
    # PEFT: one of the copies runs
    r"|base_layer|original_module|modules_to_save\.[^.]+"
)
_WRAPPER = re.compile(rf"(^|\.)(?:{_WRAPPERS})(?=\.|$)")
_LAYER = re.compile(r"(?:^|\.)(?:(?:layers?|blocks?|h)\.)(\d+)(?=\.|$)")
_NUMBER = re.compile(r"(?:^|\.)(\d+)(?=\.|$)")
_AUXILIARY = re.compile(r"(?:^|\.)(?:mtp|nextn|multi_token)", re.IGNORECASE)
_ATTENTION = re.compile(r"attn|attention", re.IGNORECASE)
_OF_SHARED_EXPERTS = re.compile(r"(?:^|\.)shared_\w*router$")
_STACKS = (
    ("vision", re.compile(r"vision|visual|image")),
    ("audio", re.compile(r"audio|speech")),
    ("code_predictor", re.compile(r"^code_predictor$")),
    ("talker", re.compile(r"^talker$")),
    ("encoder", re.compile(r"^encoder$")),
)


class Place(NamedTuple):
    """A layer of a model.

    Attributes:
        stack: which stack of layers; empty for the main decoder.
        layer: zero-based; global as long as the parts of a pipeline keep the names of the whole model.
        path: the cleaned name without the layer's number, equal for the same module of all layers.
    """

    stack: str
    layer: int
    path: str


def clean(name: str) -> str:
    """A module's name without the names that wrappers put in."""
    previous = None
    while previous != name:
        previous, name = name, _WRAPPER.sub("", name)
    return name.lstrip(".")


def find_place(name: str, *, has_decoder: bool, layer: int | None = None) -> Place | None:
    """The place of a router by its module name; None for those that are no part of the balance.

    Left out are auxiliary multi-token-prediction layers, mixtures of attention heads, and what weighs shared experts.

    Args:
        name: as ``named_modules`` tells it, wrapped or not.
        has_decoder: the model has a decoder beside an encoder, which then is a stack of its own.
        layer: the layer's number, where the module knows it better than its name.
    """
    name = clean(name)
    match = _LAYER.search(name) or _NUMBER.search(name)
    before, after = (name[: match.start()], name[match.end() :]) if match else (name, "")
    if _AUXILIARY.search(name) or _OF_SHARED_EXPERTS.search(name) or (match and _ATTENTION.search(after)):
        return None
    if layer is None:
        layer = int(match[1]) if match else 0
    return Place(_stack([*before.split("."), *after.split(".")], has_decoder), layer, f"{before}.*{after}")


def has_decoder(names: Iterable[str]) -> bool:
    """Whether a model with these module names has a part called decoder."""
    return any("decoder" in name.split(".") for name in names)


def name_apart(stack: str, path: str, taken: str, part: int) -> str:
    """A name for a stack that would share its layers with the one at the path ``taken``.

    It is named after the first component that tells the two paths apart, or after the part of the model.
    """
    known = taken.split(".")
    own = next((piece for piece in path.split(".") if piece not in known and piece.strip("*")), f"part_{part}")
    return f"{stack}_{own}" if stack else own


def _stack(pieces: list[str], has_decoder: bool) -> str:
    for name, pattern in _STACKS:
        if any(pattern.search(piece) for piece in pieces) and (name != "encoder" or has_decoder):
            return name
    return ""
