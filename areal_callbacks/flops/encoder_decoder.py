"""Models of two sequences: an encoder reads the source, a decoder attends to it while it produces the target.

A run that knows both lengths of every pair has two ways to the same number. With few distinct pairs it keeps
``(source, target) → count`` for :meth:`EncoderDecoderFlops.of_pairs`. Otherwise a histogram of the sources, one of the
targets and the sum of source times target over all pairs are enough for :meth:`EncoderDecoderFlops.of_sums`: the
product is all that the two lengths have in common, and it adds up on a device without being read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from areal_callbacks.flops.blocks import Macs
from areal_callbacks.flops.estimator import TRAINING_FLOPS_PER_MAC, TrainingFlops, training_flops
from areal_callbacks.flops.fields import Fields
from areal_callbacks.flops.heads import heads_of
from areal_callbacks.flops.layers import Stack
from areal_callbacks.flops.masks import BIDIRECTIONAL

_ENCODERS = ("EncoderModel", "Encoder", "ForTokenClassification", "ForAudioClassification")
_DECODERS = ("ForCausalLM", "Decoder")
"""What classes of transformers end with that are one side of an encoder–decoder (T5's, BART's, Whisper's)."""


@dataclass(frozen=True, slots=True)
class EncoderDecoderFlops:
    """Forward and backward FLOPs of one pair of sequences.

    Of two towers that do not attend to each other, the source is the image and the target the text.

    Attributes:
        encoder: of the source, by its length S.
        decoder: of the target, by its length T, without what follows.
        per_source_token: FLOPs of the keys and values that cross attention makes of a source token.
        per_cross_pair: FLOPs of each of the T·S (target, source) pairs.
    """

    encoder: TrainingFlops
    decoder: TrainingFlops
    per_source_token: int
    per_cross_pair: int
    _of_one_length: TrainingFlops = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Of two sequences of one length, whose (target, source) pairs are those of bidirectional attention."""
        both = self.encoder, self.decoder
        flops = TrainingFlops(
            self.per_source_token + sum(side.a for side in both),
            sum(side.b for side in both),
            tuple(window for side in both for window in side.windows),
            (*(other for side in both for other in side.others), (BIDIRECTIONAL, self.per_cross_pair)),
            sum(side.once for side in both),
        )
        object.__setattr__(self, "_of_one_length", flops)

    def __call__(self, source_length: int, target_length: int | None = None) -> int:
        """FLOPs of one source and its target.

        With one length only, both sequences are taken to be of that length: that keeps the estimator a function of one
        length, but it is right only for such data. Raises TypeError or ValueError for what is no length.
        """
        if target_length is None:
            return self._of_one_length(source_length)
        total = self.encoder(source_length) + self.decoder(target_length)
        if type(source_length) is not int or type(target_length) is not int:  # of arrays, and checked by now
            source_length, target_length = int(source_length), int(target_length)
        if not target_length:
            return total
        return total + source_length * (self.per_source_token + self.per_cross_pair * target_length)

    def of_pairs(self, pairs: Mapping[tuple[int, int], int]) -> int:
        """FLOPs of many pairs.

        Args:
            pairs: (source length, target length) → how many there are.
        """
        return sum(count * self(source, target) for (source, target), count in pairs.items())

    def of_sums(self, sources: Mapping[int, int], targets: Mapping[int, int], products: int) -> int:
        """FLOPs of many pairs, none of whose targets is empty; equal to :meth:`of_pairs`.

        Args:
            sources: length of a source → how many there are.
            targets: length of a target → how many there are.
            products: the sum over all pairs of source length times target length.

        Raises:
            ValueError: not as many sources as targets, or an empty target.
        """
        if sum(sources.values()) != sum(targets.values()) or targets.get(0):
            raise ValueError(f"every source needs a target of its own that is not empty, not {sources} and {targets}")
        encoded = sum(count * self.encoder(length) for length, count in sources.items())
        decoded = sum(count * self.decoder(length) for length, count in targets.items())
        tokens = sum(count * length for length, count in sources.items())
        return encoded + decoded + self.per_source_token * tokens + self.per_cross_pair * products


@dataclass(frozen=True)
class EncoderDecoder:
    """One row of the table of architectures: two stacks and the cross attention of every decoder layer.

    Attributes:
        encoder: its layers; its head is not used.
        decoder: its layers and head.
    """

    encoder: Stack
    decoder: Stack

    def compile(self, config: Any, model_type: str, model_class: str = "") -> EncoderDecoderFlops | TrainingFlops:
        """Read a configuration once; of a class that has one side only, as a model of one sequence.

        Args:
            config: with the dimensions of both.
            model_type: of it, for messages.
            model_class: name of a class of transformers; without it, the one that generates.

        Raises:
            ValueError: a field is missing or malformed.
        """
        if model_class.endswith(_ENCODERS):
            return self.encoder.compile(config, model_type, model_class)
        if model_class.endswith(_DECODERS):
            return self.decoder.compile(config, model_type, model_class)
        return self.compile_sides(config, config, model_type, model_class)

    def compile_sides(
        self, encoder_config: Any, decoder_config: Any, model_type: str, model_class: str = ""
    ) -> EncoderDecoderFlops:
        """Both sides, as :meth:`compile`, with a configuration each."""
        encoder = Fields(encoder_config, model_type, self.encoder.names)
        decoder = Fields(decoder_config, model_type, self.decoder.names)
        layers, cross = self.cross_attention(decoder)
        heads = heads_of(model_class, self.decoder.head, decoder, pooled=True)
        per_token = heads.per_token + layers * Macs(cross.per_token)
        return EncoderDecoderFlops(
            encoder=training_flops(self.encoder.blocks(encoder), Macs()),
            decoder=training_flops(self.decoder.blocks(decoder), per_token, once=heads.once),
            per_source_token=TRAINING_FLOPS_PER_MAC * layers * cross.per_token,
            per_cross_pair=TRAINING_FLOPS_PER_MAC * layers * cross.per_pair,
        )

    def cross_attention(self, decoder: Fields) -> tuple[int, Macs]:
        """Number of decoder layers, and the cross attention of one.

        ``per_token`` are the multiply-adds of a target token (query and output), and as many of a source token (key and
        value); ``per_pair`` those of a (target, source) pair.
        """
        heads = decoder.integer("num_attention_heads", minimum=1)
        hidden = decoder.integer("hidden_size")
        width = heads * decoder.integer("head_dim", default=hidden // heads)
        return decoder.integer("num_hidden_layers"), Macs(2 * hidden * width, 2 * width)
