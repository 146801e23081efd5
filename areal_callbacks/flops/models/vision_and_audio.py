"""Rows of encoders of images, of images beside texts, and of audio.

A sequence is that of the positions of an image, patches and class token, or of the samples of audio.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

from areal_callbacks.flops import blocks
from areal_callbacks.flops.attention import MHA
from areal_callbacks.flops.blocks import Macs, projection
from areal_callbacks.flops.estimator import Block
from areal_callbacks.flops.feed_forwards import PLAIN_MLP, mlp_of_hidden_sizes
from areal_callbacks.flops.fields import Fields
from areal_callbacks.flops.heads import language_model_head, no_head
from areal_callbacks.flops.layers import Stack
from areal_callbacks.flops.patches import embed_and_pool, patch_embedding, pool_once
from areal_callbacks.flops.sampled import Sampled
from areal_callbacks.flops.two_towers import TwoTowers


def _text_head_once(fields: Fields) -> Macs:
    return projection(
        fields.integer("hidden_size"), fields.integer("projection_size", default=fields.integer("hidden_size"))
    )


def _projection_and_positions(fields: Fields) -> Iterable[Block]:
    """The map of the features to the hidden size, and the grouped convolution that tells positions."""
    hidden, features = fields.integer("hidden_size"), (fields.sequence("conv_dim") or (0,))[-1]
    groups = fields.integer("num_conv_pos_embedding_groups", minimum=1)
    channels = blocks.depthwise_convolution(channels=hidden, kernel_size=fields.integer("num_conv_pos_embeddings"))
    return [
        Block(projection(features, hidden), name="feature projection"),
        Block((hidden // groups) * channels, name="position convolution"),
    ]


_Image = partial(Stack, MHA, bidirectional=True, head=no_head)
_CLIP_IMAGE = _Image(PLAIN_MLP, outside=patch_embedding(1))
_SIGLIP_IMAGE = _Image(PLAIN_MLP, outside=embed_and_pool, once=pool_once)
_CLIP_TEXT = Stack(MHA, PLAIN_MLP, head=no_head)
_SIGLIP_TEXT = Stack(MHA, PLAIN_MLP, head=no_head, bidirectional=True, once=_text_head_once)
_WAV2VEC2 = Sampled(
    Stack(MHA, PLAIN_MLP, bidirectional=True, head=language_model_head, outside=_projection_and_positions)
)

IMAGES: Mapping[str, Stack] = {
    "clip_vision_model": _CLIP_IMAGE,
    "deit": _Image(PLAIN_MLP, outside=patch_embedding(2)),
    "dinov2": _Image(mlp_of_hidden_sizes("mlp_ratio"), outside=patch_embedding(1)),
    "ijepa": _Image(PLAIN_MLP, outside=patch_embedding(0)),
    "siglip_vision_model": _SIGLIP_IMAGE,
    "vit": _Image(PLAIN_MLP, outside=patch_embedding(1)),
    "vit_msn": _Image(PLAIN_MLP, outside=patch_embedding(1)),
}
"""Model type → stack, by positions."""

TEXT_TOWERS: Mapping[str, Stack] = {"clip_text_model": _CLIP_TEXT, "siglip_text_model": _SIGLIP_TEXT}
"""Model type → stack."""

IMAGES_AND_TEXTS: Mapping[str, TwoTowers] = {
    "clip": TwoTowers(_CLIP_IMAGE, _CLIP_TEXT, "projection_dim"),
    "siglip": TwoTowers(_SIGLIP_IMAGE, _SIGLIP_TEXT),
}
"""Model type → both towers."""

AUDIO: Mapping[str, Sampled] = {
    "hubert": _WAV2VEC2,
    "unispeech": _WAV2VEC2,
    "unispeech-sat": _WAV2VEC2,
    "wav2vec2": _WAV2VEC2,
}
"""Model type → encoder, by samples."""
