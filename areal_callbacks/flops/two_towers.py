"""Models that compare an image with a text, each read by a tower of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from areal_callbacks.flops.blocks import Macs, projection
from areal_callbacks.flops.encoder_decoder import EncoderDecoderFlops
from areal_callbacks.flops.estimator import TrainingFlops, training_flops
from areal_callbacks.flops.fields import Fields
from areal_callbacks.flops.layers import Stack


@dataclass(frozen=True)
class TwoTowers:
    """One row of the table of architectures.

    The similarities of all images and texts of a batch are left out: they belong to no single pair.

    Attributes:
        image: by the positions of an image.
        text: by the tokens of a text.
        projection: the field with the width that one position of each tower is projected to; "" without projections.
    """

    image: Stack
    text: Stack
    projection: str = ""

    def compile(self, config: Any, model_type: str, model_class: str = "") -> EncoderDecoderFlops:
        """Read a configuration once. Raises ValueError for a missing or malformed field."""
        del model_class
        image, text = (_compile(*tower) for tower in self.towers(config, model_type))
        return EncoderDecoderFlops(encoder=image, decoder=text, per_source_token=0, per_cross_pair=0)

    def towers(self, config: Any, model_type: str) -> Iterator[tuple[Stack, Fields, Macs]]:
        """Each tower, its fields, and what it needs once a sequence."""
        whole = Fields(config, model_type)
        for stack, name in ((self.image, "vision_config"), (self.text, "text_config")):
            fields = whole.part(name)
            yield stack, fields, stack.once_of(fields) + self._projection(whole, fields)

    def _projection(self, whole: Fields, fields: Fields) -> Macs:
        if not self.projection:
            return Macs()
        return projection(fields.integer("hidden_size"), whole.integer(self.projection))


def _compile(stack: Stack, fields: Fields, once: Macs) -> TrainingFlops:
    return training_flops(stack.blocks(fields), Macs(), once=once)
