"""What the arguments of a forward tell about one batch of text: its tokens, and where they are padding."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

import torch
from torch import Tensor

_IDS = ("input_ids", "tokens", "token_ids", "ids")
_MASKS = ("attention_mask", "mask")
_POSITIONS = ("position_ids",)
_LABELS = ("labels",)
_BOUNDARIES = ("cu_seq_lens_q", "cu_seqlens_q", "cu_seqlens")
READ_NAMES = frozenset((*_IDS, *_MASKS, *_POSITIONS, *_LABELS, *_BOUNDARIES))
"""The arguments of a model that are read; a mapping in their place holds one of several masks."""

_TOO_NARROW = (torch.bool, torch.uint8, torch.int8)


class TokenBatch(NamedTuple):
    """One batch with rows of equal width; None for what was not told. Nothing here has waited for the device.

    Attributes:
        rows: their number.
        width: of a row, padding included.
        device: of the tokens.
        ids: ``[rows, width]``, or None for embeddings.
        mask: ``[rows, width]``, not 0 for what is no padding; different numbers tell packed sequences apart.
        square: ``[rows, width, width]``, not 0 where one token may attend to another.
        positions: ``[rows, width, axes]``, restarting with every sequence.
        labels: ``[rows, width]``, -100 where no loss is.
        boundaries: ``[sequences + 1]`` into the joined rows.
        is_decoder: of an encoder-decoder.
        config: of the model.
    """

    rows: int
    width: int
    device: torch.device
    ids: Tensor | None = None
    mask: Tensor | None = None
    square: Tensor | None = None
    positions: Tensor | None = None
    labels: Tensor | None = None
    boundaries: Tensor | None = None
    is_decoder: bool = False
    config: Any = None

    @property
    def pad_id(self) -> int | None:
        """The number of padding in the configuration."""
        found = getattr(self.config, "pad_token_id", None)
        return found if isinstance(found, int) else None

    @property
    def is_pad_shared(self) -> bool:
        """That number also marks beginnings or ends."""
        others: list[Any] = [getattr(self.config, f"{name}_token_id", None) for name in ("bos", "eos", "sep", "cls")]
        known = {number for other in others for number in (other if isinstance(other, list) else [other])}
        return self.pad_id in known

    @property
    def ends_with_labels(self) -> bool:
        """What a decoder is given behind the last label conditions nothing that a loss can see."""
        return self.is_decoder and self.labels is not None

    @property
    def rule(self) -> str:
        """What tells its lengths."""
        told = {
            "boundaries": self.boundaries,
            "positions": self.positions,
            "mask": self.mask,
            "square mask": self.square if self.mask is None else None,
            "labels": self.labels if self.mask is None or self.is_decoder else None,
            "pad_token_id": self.pad_id if self.mask is None else None,
        }
        return " and ".join(name for name, value in told.items() if value is not None) or "full width"

    @property
    def has_numbers(self) -> bool:
        """The mask may tell packed sequences apart."""
        return self.mask is not None and tells_apart(self.mask)


def read_tokens(inputs: Mapping[str, Any]) -> Tensor | None:
    """Token ids ``[..., width]``, or embeddings ``[..., width, size]``; None if there are none."""
    for name in _IDS:
        ids = inputs.get(name)
        if is_token_ids(ids):
            return ids
    embeddings = inputs.get("inputs_embeds")
    return embeddings if isinstance(embeddings, Tensor) and embeddings.dim() > 1 else None


def tells_apart(mask: Tensor) -> bool:
    """Different numbers in it may be different sequences."""
    return mask.dtype != torch.bool and not mask.is_floating_point()


def is_token_ids(value: Any) -> TypeGuard[Tensor]:
    """Integers wide enough for a vocabulary, with at least one dimension."""
    if not isinstance(value, Tensor) or value.dim() < 1 or value.dtype in _TOO_NARROW:
        return False
    return not (value.is_floating_point() or value.is_complex())


def is_turned(mask: Tensor, tokens: Tensor) -> bool:
    """The mask ``[rows, width]`` of ids that stand in columns, ``[width, rows]``, as torch's modules take them."""
    return mask.dim() == tokens.dim() == 2 and mask.shape == tokens.shape[::-1] != tokens.shape


def read_batch(
    inputs: Mapping[str, Any], outer: Sequence[Mapping[str, Any]] = (), config: Any = None
) -> TokenBatch | None:
    """The batch of a model's call; None without tokens.

    Args:
        inputs: of the call, by name.
        outer: of the calls that it was made in, the innermost first: what an outer model was given for the same tokens
            and did not hand on counts, too.
        config: of the model.

    Raises:
        ValueError: the tokens are those of one sample inside of ``torch.vmap``.
    """
    tokens = read_tokens(inputs)
    if tokens is None:
        return None
    if _is_one_sample(tokens):
        raise ValueError("torch.vmap hides how many rows there are")
    mask = _first([inputs], _MASKS)
    tokens = tokens.t() if mask is not None and is_turned(mask, tokens) else tokens
    shape = _shape(tokens, mask)
    rows, width = math.prod(shape[:-1]), shape[-1]
    given = [inputs, *(each for each in outer if _is_about(each, rows, width))]
    return TokenBatch(
        rows,
        width,
        tokens.device,
        ids=_rows(_first(given, _IDS, is_token_ids), rows, width)
        if shape != tokens.shape
        else tokens.reshape(rows, width),
        mask=_rows(_first(given, _MASKS, _is_flat), rows, width),
        square=_square(_first(given, _MASKS, _is_square), rows, width),
        positions=_positions(_first(given, _POSITIONS), rows, width),
        labels=_rows(_first(given, _LABELS), rows, width),
        boundaries=_first(given, _BOUNDARIES),
        is_decoder=inputs.get("encoder_hidden_states") is not None,
        config=config,
    )


def _is_one_sample(tokens: Tensor) -> bool:
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tokens) and not functorch.is_batchedtensor(tokens):
        tokens = functorch.get_unwrapped(tokens)
    return functorch.is_batchedtensor(tokens)


def _shape(tokens: Tensor, mask: Tensor | None) -> torch.Size:
    """Of the batch: without the size of embeddings, or the numbers that together make a token."""
    if tokens.is_floating_point() or (tokens.dim() == 3 and mask is not None and mask.shape == tokens.shape[:2]):
        return tokens.shape[:-1]
    return tokens.shape


def _is_about(inputs: Mapping[str, Any], rows: int, width: int) -> bool:
    """An outer call was given as many tokens, flat or in groups."""
    tokens = read_tokens(inputs)
    tokens = inputs.get("labels") if tokens is None else tokens
    if not isinstance(tokens, Tensor) or not tokens.dim():
        return False
    shape = tokens.shape[:-1] if tokens.is_floating_point() else tokens.shape
    return bool(shape) and shape[-1] == width and shape.numel() == rows * width


def _first(
    given: Sequence[Mapping[str, Any]], names: Sequence[str], fits: Callable[[Tensor], bool] = lambda _: True
) -> Tensor | None:
    for inputs in given:
        for name in names:
            value = inputs.get(name)
            value = value.get("full_attention") if isinstance(value, Mapping) else value
            if isinstance(value, Tensor) and fits(value):
                return value
    return None


def _is_flat(mask: Tensor) -> bool:
    return mask.dim() in (1, 2, 3)


def _is_square(mask: Tensor) -> bool:
    return mask.dim() == 4 and mask.shape[-1] == mask.shape[-2]


def _rows(value: Tensor | None, rows: int, width: int) -> Tensor | None:
    """As ``[rows, width]``; of a wider one the end, because a prefix has no tokens. None where it does not fit."""
    if value is None or not value.dim() or value.shape[-1] < width:
        return None
    value = value[..., -width:].reshape(-1, width)
    return value.expand(rows, width) if len(value) in (1, rows) else None


def _square(mask: Tensor | None, rows: int, width: int) -> Tensor | None:
    if mask is None or mask.shape[-1] != width or mask.shape[0] not in (1, rows):
        return None
    allowed = mask[:, 0] > -1 if mask.is_floating_point() else mask[:, 0] != 0  # floats are added to the scores
    return allowed.expand(rows, width, width)


def _positions(positions: Tensor | None, rows: int, width: int) -> Tensor | None:
    """As ``[rows, width, axes]``: text has one axis, images three; of four the first is that of the text."""
    if positions is None or not positions.dim() or positions.shape[-1] != width:
        return None
    if positions.dim() < 3:
        flat = _rows(positions, rows, width)
        return None if flat is None else flat[..., None]
    axes = positions[:1] if positions.shape[0] == 4 else positions
    return axes.movedim(0, -1).expand(rows, width, -1) if axes.shape[1] in (1, rows) else None
