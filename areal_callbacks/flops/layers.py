"""A model as a stack of layers: which block each layer has, and how many pairs its attention visits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from areal_callbacks.flops.blocks import Macs
from areal_callbacks.flops.estimator import Block, TrainingFlops, training_flops
from areal_callbacks.flops.fields import Fields
from areal_callbacks.flops.heads import Head, Heads, heads_of, language_model_head
from areal_callbacks.flops.layer_types import CHUNKED, FULL, SLIDING, Rule
from areal_callbacks.flops.masks import BIDIRECTIONAL, CAUSAL, Band, Chunked, Mask, Sliding


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of a configuration.

    Attributes:
        fields: the configuration.
        index: zero-based.
        kind: its entry of ``layer_types``.
    """

    fields: Fields
    index: int
    kind: str

    def integer(self, *names: str, default: int | None = None, minimum: int = 0) -> int:
        """As :meth:`Fields.integer`; a list holds one value for each layer."""
        values = self.fields.get(names[0])
        if isinstance(values, (list, tuple)):
            return int(values[self.index])
        return self.fields.integer(*names, default=default, minimum=minimum)


Reader = Callable[[Layer], Macs | Iterable[Block]]
"""How the fields of a layer become one of its blocks; a plain result takes the mask of the layer's kind."""


@dataclass(frozen=True)
class Stack:
    """One row of the table of architectures.

    Attributes:
        attention: the block of full, sliding and chunked layers.
        feed_forward: the block that follows it; None where the layers have none.
        dense: takes the place of ``feed_forward`` in layers that ``is_dense`` names.
        layer_types: the rule that says of which kind each layer is; without one, all are full.
        mixers: kind → block, for kinds other than those of ``attention``.
        head: what follows the layers, at every position.
        outside: what else the model has beside its layers.
        names: common name of a field → its name in this architecture's configuration.
        bidirectional: whether a token sees those after it.
        causal_if: a field that makes an encoder causal.
        once: what a sequence needs whatever its length, such as pooling; in ``per_token``.
        prefix_sees_both_sides: ``use_bidirectional_attention`` concerns a prefix of images and prompt only, whose
            length no configuration tells: counted is causal attention (PaliGemma's Gemma).
    """

    attention: Reader
    feed_forward: Reader | None
    layer_types: Rule | None = None
    is_dense: Callable[[Layer], bool] | None = None
    dense: Reader | None = None
    mixers: Mapping[str, Reader] = field(default_factory=dict)
    head: Head = language_model_head
    outside: Callable[[Fields], Iterable[Block]] | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    bidirectional: bool = False
    causal_if: str = "is_decoder"
    once: Head | None = None
    prefix_sees_both_sides: bool = False

    def compile(self, config: Any, model_type: str, model_class: str = "") -> TrainingFlops:
        """Read a configuration once.

        Args:
            config: an object or a mapping.
            model_type: named in errors.
            model_class: name of a class of transformers with another head than the language model's, if any.

        Raises:
            ValueError: a field is missing or malformed; names the model type and the field.
        """
        fields = Fields(config, model_type, self.names)
        heads = self.heads(fields, model_class)
        once = (heads.once or Macs()) + self.once_of(fields)
        return training_flops(self.blocks(fields), heads.per_token, once=once)

    def heads(self, fields: Fields, model_class: str = "") -> Heads:
        """What follows the layers of a class."""
        return heads_of(model_class, self.head, fields, pooled=self.bidirectional)

    def once_of(self, fields: Fields) -> Macs:
        """What a sequence needs whatever its length."""
        return self.once(fields) if self.once else Macs()

    def blocks(self, fields: Fields) -> list[Block]:
        """All blocks but the head, layer by layer."""
        both_sides = self.sees_both_sides(fields) or self.prefix_sees_both_sides
        if not both_sides and fields.get("use_bidirectional_attention") is True:
            raise fields.error("'use_bidirectional_attention' is set, and only causal attention is counted")
        found = [block for layer in self._layers(fields) for block in self._layer(layer)]
        return found + list(self.outside(fields) if self.outside else ())

    def blocks_by_layer(self, fields: Fields) -> list[list[Block]]:
        """The blocks of every layer."""
        return [list(self._layer(layer)) for layer in self._layers(fields)]

    def layer_blocks(self, fields: Fields, index: int) -> list[Block]:
        """The blocks of one layer."""
        return list(self._layer(self._layers(fields)[index]))

    def _layers(self, fields: Fields) -> list[Layer]:
        declared = fields.get("layer_types")
        number = fields.integer("num_hidden_layers", default=len(declared) if isinstance(declared, list) else None)
        kinds = self.layer_types(fields, number) if self.layer_types else [FULL] * number
        return [Layer(fields, index, kind) for index, kind in enumerate(kinds)]

    def sees_both_sides(self, fields: Fields) -> bool:
        """Whether attention is bidirectional."""
        return self.bidirectional and not fields.get(self.causal_if)

    def _layer(self, layer: Layer) -> Iterator[Block]:
        if layer.kind in self.mixers:
            yield from as_blocks(self.mixers[layer.kind](layer), layer.kind)
        else:
            found = self.attention(layer)
            yield from [Block(found, mask=self._mask(layer), name="attention")] if isinstance(found, Macs) else found
        if self.feed_forward is not None:
            is_dense = self.dense is not None and self.is_dense is not None and self.is_dense(layer)
            found = self.dense(layer) if self.dense is not None and is_dense else self.feed_forward(layer)
            yield from as_blocks(found, "experts" if isinstance(found, Macs) and found.unused > 0 else "mlp")

    def _mask(self, layer: Layer) -> Mask:
        fields, kind = layer.fields, layer.kind
        if kind == FULL:
            return BIDIRECTIONAL if self.sees_both_sides(fields) else CAUSAL
        if kind == SLIDING:
            if self.sees_both_sides(fields):
                half = fields.integer("local_attention", default=0) // 2
                return Band(layer.integer("sliding_window", default=half or None, minimum=1))
            return Sliding(layer.integer("sliding_window", minimum=1))
        if kind == CHUNKED:
            return Chunked(fields.integer("attention_chunk_size", minimum=1))
        known = ", ".join(repr(name) for name in (FULL, SLIDING, CHUNKED, *self.mixers))
        raise fields.error(f"'layer_types' holds {kind!r}; known are {known}")


def as_blocks(found: Macs | Iterable[Block], name: str, mask: Mask = CAUSAL) -> Iterable[Block]:
    """What a :data:`Reader` returned as blocks; a plain sum gets the name and the mask."""
    return [Block(found, mask=mask, name=name)] if isinstance(found, Macs) else found


def together(*readers: Reader) -> Reader:
    """Several blocks of one layer, all of them plain sums with the mask of the layer's kind."""

    def read(layer: Layer) -> Macs:
        total = Macs()
        for reader in readers:
            macs = reader(layer)
            assert isinstance(macs, Macs)
            total += macs
        return total

    return read
