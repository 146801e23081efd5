"""Vision towers: training FLOPs of one image or video from its size in pixels.

The towers are not part of a language model's estimate. Patches are those of the resized image, whose size the processor
decides; where the model is given grids of patches (``image_grid_thw``), :meth:`VisionTower.of_grid` takes those.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from areal_callbacks.flops import blocks
from areal_callbacks.flops.blocks import Macs, projection
from areal_callbacks.flops.estimator import TRAINING_FLOPS_PER_MAC
from areal_callbacks.flops.fields import Fields, read_field

if TYPE_CHECKING:
    from torch import Tensor

Number = TypeVar("Number", int, "Tensor")

_NOTHING = Macs()


@dataclass(frozen=True)
class VisionTower:
    """Forward and backward FLOPs of a tower by the grid of patches.

    Attributes:
        patch_size: pixels of a side of a patch.
        temporal_patch_size: frames of a patch.
        embedding: multiply-adds of embedding one patch.
        full: the layers whose attention covers one frame.
        windowed: the layers whose attention covers windows of ``window`` by ``window`` patches.
        window: see there; 0 without such layers.
        extra_tokens: class token and registers beside the patches of a frame.
        merge: patches of a side that are merged to one token of the language model.
        merger: multiply-adds of making one such token.
        pooling: multiply-adds of an attention pooling head: ``per_pair`` for each token, ``per_token`` once.
    """

    patch_size: int
    temporal_patch_size: int
    embedding: int
    full: Macs
    windowed: Macs = _NOTHING
    window: int = 0
    extra_tokens: int = 0
    merge: int = 1
    merger: int = 0
    pooling: Macs = _NOTHING

    def __call__(self, height: int, width: int, frames: int = 1) -> int:
        """FLOPs of an image of ``height`` by ``width`` pixels, or of a video of ``frames`` such images."""
        grid = (-(-frames // self.temporal_patch_size), height // self.patch_size, width // self.patch_size)
        return self.of_grid(*grid)

    def of_grid(self, frames: int, height: int, width: int) -> int:
        """FLOPs of a grid of patches, ``frames`` being those after the merging of ``temporal_patch_size``."""
        return self.of_sums(*self.sums(frames, height, width))

    def sums(self, frames: Number, height: Number, width: Number) -> tuple[Number, Number, Number, Number, Number]:
        """What the FLOPs of a grid are linear in, of ints or of integer tensors with one entry for each grid.

        Returns:
            Frames, patches, squared tokens, (query, key) pairs within windows, merged tokens.
        """
        patches = height * width
        pairs = _squares(height, self.window) * _squares(width, self.window)
        merged = patches // self.merge**2
        return frames, frames * patches, frames * (patches + self.extra_tokens) ** 2, frames * pairs, frames * merged

    def of_sums(self, frames: int, patches: int, squared: int, pairs: int, merged: int) -> int:
        """FLOPs of all grids whose :meth:`sums` add up to these."""
        tokens = patches + self.extra_tokens * frames
        per_token = self.full.per_token + self.windowed.per_token + self.pooling.per_pair
        layers = per_token * tokens + self.full.per_pair * squared + self.windowed.per_pair * pairs
        macs = self.embedding * patches + layers + self.merger * merged + self.pooling.per_token * frames
        return TRAINING_FLOPS_PER_MAC * macs


def _squares(side: Number, window: int) -> Number:
    """Sum of the squared sides of the windows along one side of the grid."""
    if not window:
        return side * 0
    return side // window * window**2 + (side % window) ** 2


def vision_tower(config: Any) -> VisionTower | None:
    """The tower of a vision configuration, or of the ``vision_config`` in a multimodal one; None for other types.

    Raises:
        ValueError: the configuration lacks a field or has a malformed one.
    """
    inner = read_field(config, "vision_config")
    config = inner if isinstance(inner, Mapping) or hasattr(inner, "model_type") else config
    model_type = str(read_field(config, "model_type"))
    reader = TOWERS.get(model_type)
    return None if reader is None else reader(Fields(config, model_type, _NAMES.get(model_type)))


def _layers(fields: Fields, number: int, *, intermediate: int, gated: bool = False) -> Macs:
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads", minimum=1)
    attention = blocks.grouped_query_attention(
        hidden_size=hidden, num_attention_heads=heads, num_key_value_heads=heads, head_dim=hidden // heads
    )
    return number * (attention + blocks.feed_forward(hidden_size=hidden, intermediate_size=intermediate, gated=gated))


def _embedding(fields: Fields, temporal: int = 1) -> int:
    channels, side = fields.integer("num_channels", "in_channels", "in_chans", default=3), fields.integer("patch_size")
    return temporal * channels * side**2 * fields.integer("hidden_size")


def _transformer(*, extra_tokens: int, gated: bool = False, ratio: str = "") -> Callable[[Fields], VisionTower]:
    """A plain vision transformer; ``ratio`` is the field of the MLP's width in hidden sizes, if it has one."""

    def read(fields: Fields) -> VisionTower:
        hidden = fields.integer("hidden_size")
        width = int(hidden * fields.get(ratio)) if ratio else fields.integer("intermediate_size")
        return VisionTower(
            patch_size=fields.integer("patch_size", minimum=1),
            temporal_patch_size=1,
            embedding=_embedding(fields),
            full=_layers(fields, fields.integer("num_hidden_layers"), intermediate=width, gated=gated),
            extra_tokens=extra_tokens,
        )

    return read


def _siglip(fields: Fields) -> VisionTower:
    """With the pooling head, one query that attends to all tokens, unless ``vision_use_head`` is False."""
    hidden, width = fields.integer("hidden_size"), fields.integer("intermediate_size")
    tower = _transformer(extra_tokens=0)(fields)
    if fields.get("vision_use_head", True) is False:
        return tower
    once = 2 * projection(hidden, hidden) + blocks.feed_forward(
        hidden_size=hidden, intermediate_size=width, gated=False
    )
    pooling = Macs(once.per_token, per_pair=2 * hidden * hidden + 2 * hidden)
    return VisionTower(tower.patch_size, 1, tower.embedding, tower.full, pooling=pooling)


def _qwen_vl(fields: Fields) -> VisionTower:
    """Qwen2-VL, Qwen2.5-VL (windows in all but a few layers) and Qwen3-VL (further mergers)."""
    hidden, merge = fields.integer("hidden_size"), fields.integer("spatial_merge_size", minimum=1)
    side, temporal = fields.integer("patch_size", minimum=1), fields.integer("temporal_patch_size", minimum=1)
    listed, layers = fields.sequence("fullatt_block_indexes"), fields.integer("num_hidden_layers")
    full = layers if listed is None else sum(index in listed for index in range(layers))
    gated = listed is not None
    width = int(hidden * fields.get("mlp_ratio", 0)) or fields.integer("intermediate_size")
    merged, mergers = hidden * merge**2, 1 + len(fields.sequence("deepstack_visual_indexes") or ())
    return VisionTower(
        patch_size=side,
        temporal_patch_size=temporal,
        embedding=_embedding(fields, temporal),
        full=_layers(fields, full, intermediate=width, gated=gated),
        windowed=_layers(fields, layers - full, intermediate=width, gated=gated),
        window=0 if listed is None else fields.integer("window_size") // merge // side * merge,
        merge=merge,
        merger=mergers * (merged * merged + merged * fields.integer("out_hidden_size")),
    )


_QWEN = {"num_hidden_layers": "depth", "num_attention_heads": "num_heads"}
_NAMES: Mapping[str, Mapping[str, str]] = {
    **dict.fromkeys(
        ("qwen2_vl", "qwen2_vl_vision"), _QWEN | {"hidden_size": "embed_dim", "out_hidden_size": "hidden_size"}
    ),
    **dict.fromkeys(("qwen2_5_vl", "qwen2_5_vl_vision"), _QWEN),
    **dict.fromkeys(("qwen3_vl", "qwen3_vl_vision", "qwen3_vl_moe", "qwen3_vl_moe_vision"), _QWEN),
    **dict.fromkeys(("qwen3_5_vision", "qwen3_5_moe_vision"), _QWEN),
}
"""Vision configurations with names of their own; older files name the whole model's type in them."""

TOWERS: Mapping[str, Callable[[Fields], VisionTower]] = {
    "clip_vision_model": _transformer(extra_tokens=1),
    "dinov2": _transformer(extra_tokens=1, ratio="mlp_ratio"),
    "pixtral": _transformer(extra_tokens=0, gated=True),
    "siglip_vision_model": _siglip,
    "vit": _transformer(extra_tokens=1),
    **dict.fromkeys(_NAMES, _qwen_vl),
}
"""Type of a vision configuration → how its fields become a tower."""
