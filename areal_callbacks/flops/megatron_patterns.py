"""The layers of a hybrid Megatron model, which a string names one symbol a layer.

``M*M*/MM/MM``: the layers of the decoder, then those of every further token that is predicted. ``|`` between layers
divides pipeline stages and is skipped.
"""

from __future__ import annotations

from dataclasses import dataclass

from areal_callbacks.flops import megatron_blocks as readers
from areal_callbacks.flops.attention import multi_head_latent_attention, sparse_latent_attention
from areal_callbacks.flops.estimator import Block
from areal_callbacks.flops.fields import Fields
from areal_callbacks.flops.layer_types import LINEAR
from areal_callbacks.flops.layers import Layer, Reader, as_blocks

SYMBOLS: dict[str, tuple[str, Reader]] = {
    "M": ("mamba", readers.mamba),
    "G": (LINEAR, readers.linear_attention),
    "*": ("attention", readers.grouped_attention),
    "+": ("latent_attention", multi_head_latent_attention),
    "D": ("sparse_attention", sparse_latent_attention),
    "-": ("mlp", readers.dense),
    "E": ("moe", readers.experts),
}
"""Symbol → the kind of the layer and its only block."""


@dataclass(frozen=True)
class Pattern:
    """A pattern in its parts.

    Attributes:
        decoder: a symbol for each layer.
        further: a symbol for each layer of each further token that is predicted.
    """

    decoder: str
    further: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Pattern:
        """Divide at ``/``."""
        decoder, *further = text.replace("|", "").split("/")
        return cls(decoder, tuple(further))

    @property
    def unknown(self) -> list[str]:
        """Symbols without a formula, sorted."""
        return sorted(set(self.decoder + "".join(self.further)) - SYMBOLS.keys())

    def blocks(self, fields: Fields) -> list[Block]:
        """The layers of the decoder. Raises ValueError where the configuration has another number of them."""
        layers = fields.integer("num_hidden_layers")
        if len(self.decoder) != layers:
            raise fields.error(f"the pattern of the hybrid layers has {len(self.decoder)} symbols for {layers} layers")
        return layers_of(self.decoder, fields)


def layers_of(symbols: str, fields: Fields) -> list[Block]:
    """The blocks that symbols stand for."""
    found: list[Block] = []
    for index, symbol in enumerate(symbols):
        kind, read = SYMBOLS[symbol]
        found += as_blocks(read(Layer(fields, index, kind)), kind)
    return found
