"""The table of architectures: model type → stack of layers of blocks."""

from collections.abc import Mapping

from areal_callbacks.flops.encoder_decoder import EncoderDecoder
from areal_callbacks.flops.layers import Stack
from areal_callbacks.flops.models.decoders import DECODERS
from areal_callbacks.flops.models.encoder_decoders import ENCODER_DECODERS
from areal_callbacks.flops.models.encoders import ENCODERS
from areal_callbacks.flops.models.experts import DECODERS_WITH_EXPERTS
from areal_callbacks.flops.models.families import FAMILIES
from areal_callbacks.flops.models.hybrids import HYBRIDS
from areal_callbacks.flops.models.multimodal import COMPOSITES, LANGUAGE_PARTS, WITHOUT_LANGUAGE_MODEL
from areal_callbacks.flops.models.vision_and_audio import AUDIO, IMAGES, IMAGES_AND_TEXTS, TEXT_TOWERS
from areal_callbacks.flops.sampled import Sampled
from areal_callbacks.flops.two_towers import TwoTowers

Architecture = Stack | EncoderDecoder | TwoTowers | Sampled

_PARTS: Mapping[str, Architecture] = {
    **DECODERS,
    **DECODERS_WITH_EXPERTS,
    **FAMILIES,
    **HYBRIDS,
    **ENCODERS,
    **ENCODER_DECODERS,
    **LANGUAGE_PARTS,
    **IMAGES,
    **TEXT_TOWERS,
    **IMAGES_AND_TEXTS,
    **AUDIO,
}

ARCHITECTURES: Mapping[str, Architecture] = {
    **_PARTS,
    **{model_type: _PARTS[part] for model_type, part in COMPOSITES.items()},
}
"""Model type → its row. Each is verified against operator counts of the model itself."""

__all__ = [
    "ARCHITECTURES",
    "COMPOSITES",
    "ENCODER_DECODERS",
    "IMAGES_AND_TEXTS",
    "TEXT_TOWERS",
    "WITHOUT_LANGUAGE_MODEL",
    "Architecture",
]
