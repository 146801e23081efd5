"""The table of architectures: model type → stack of layers of blocks."""

from collections.abc import Mapping

from areal_callbacks.flops.layers import Stack
from areal_callbacks.flops.models.decoders import DECODERS
from areal_callbacks.flops.models.experts import DECODERS_WITH_EXPERTS
from areal_callbacks.flops.models.hybrids import HYBRIDS

ARCHITECTURES: Mapping[str, Stack] = {**DECODERS, **DECODERS_WITH_EXPERTS, **HYBRIDS}
"""Model type → stack. Each is verified against operator counts of the model itself."""
