"""Vision transformers by the number of positions of an image: its patches, and the class token if there is one."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from areal_callbacks.flops import blocks
from areal_callbacks.flops.blocks import Macs, projection
from areal_callbacks.flops.estimator import Block
from areal_callbacks.flops.fields import Fields


def patch_embedding(class_tokens: int) -> Callable[[Fields], Iterable[Block]]:
    """A linear map of each patch; the ``class_tokens`` at the start are no patches."""

    def embed(fields: Fields) -> Iterable[Block]:
        pixels = fields.integer("patch_size", minimum=1) ** 2 * fields.integer("num_channels", default=3)
        return [Block(projection(pixels, fields.integer("hidden_size")), name="patch embedding", skips=class_tokens)]

    return embed


def embed_and_pool(fields: Fields) -> Iterable[Block]:
    """SigLIP: beside the embedding, the keys and values of a pooling head, and its one query's pairs."""
    hidden = fields.integer("hidden_size")
    keys = 2 * projection(hidden, hidden) + blocks.unweighted(2 * hidden)
    return [*patch_embedding(0)(fields), *([Block(keys, name="pooling")] if _has_pooling(fields) else [])]


def pool_once(fields: Fields) -> Macs:
    """SigLIP: query, output and MLP of the pooling head, once an image."""
    if not _has_pooling(fields):
        return Macs()
    hidden, width = fields.integer("hidden_size"), fields.integer("intermediate_size")
    mlp = blocks.feed_forward(hidden_size=hidden, intermediate_size=width, gated=False)
    return 2 * projection(hidden, hidden) + mlp


def _has_pooling(fields: Fields) -> bool:
    return fields.get("vision_use_head", True) is not False
