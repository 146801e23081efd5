"""Which arguments of a call are text, and which of them marks its padding."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from areal_callbacks.monitors.forward_inputs import Inputs
from areal_callbacks.monitors.throughput.token_batch import is_token_ids, is_turned, read_tokens

_NO_TEXT = re.compile(r"mask|label|position|(^|_)(pos|seg|segments?|types?)(_|$)")
"""Names of matrices of integers that are something else, also where an embedding looks them up."""

_IDS = re.compile(r"_?(?:input_|token_)?(?:ids|tokens)$")
_MASK = re.compile(r"(?:(?P<stem>\w+?)_)??(?P<kind>key_padding_|padding_|pad_|attention_|attn_|)mask")
_LENGTHS = re.compile(r"(?:(?P<stem>\w+?)_)?(?:lengths?|lens?)")
_OF_INPUTS = frozenset({"", "src", "input", "text", "token", "seq", "sequence"})


class Text(NamedTuple):
    """A matrix of ids.

    Attributes:
        name: of the argument; empty for one without a name.
        ids: ``[..., width]``, what was looked up of the argument.
        skipped: columns of the argument before these.
        given: width of the argument; 0 for that of the ids.
    """

    name: str
    ids: Tensor
    skipped: int = 0
    given: int = 0

    @property
    def stem(self) -> str:
        """What the names of its masks begin with."""
        return _IDS.sub("", self.name)


def find_texts(inputs: Inputs, looked_up: Sequence[Tensor] | None) -> list[Text]:
    """What is called token ids, or else the first tensor, if it is a matrix of ids; and all further ones of these.

    Args:
        inputs: of the call.
        looked_up: in embeddings, which ids without such a name are; None if unknown.
    """
    named = read_tokens(inputs.named)
    given = [(name, value) for name, value in _list_tensors(inputs) if value is not named]
    others = [pair for pair in given if _is_matrix(pair[1])]
    if named is not None:
        begins = [Text(next(name for name, value in inputs.named.items() if value is named), named)]
    elif not given or not _is_matrix(given[0][1]):
        return []
    else:
        name, value = others.pop(0)
        if looked_up is None:
            return [Text(name, value)]
        begins = _match(name, value, looked_up) or _match_copy(name, value, looked_up)
    further = [text for name, value in others for text in _match(name, value, looked_up or ())]
    return [*begins, *further] if begins else []


def find_named_texts(inputs: Inputs) -> list[Text]:
    """What is called token ids, and every other matrix that is called ids or tokens: where no lookup is seen."""
    first = find_texts(inputs, None)
    named = (
        pair for pair in _list_tensors(inputs) if re.search(r"(^|_)(ids|tokens)$", pair[0]) and _is_matrix(pair[1])
    )
    return [*first, *(Text(name, value) for name, value in named if first and value is not first[0].ids)]


def _list_tensors(inputs: Inputs) -> Iterator[tuple[str, Tensor]]:
    named = ((name, value) for name, value in inputs.named.items() if not _NO_TEXT.search(name))
    for name, value in (*(("", value) for value in inputs.listed), *named):
        if isinstance(value, Tensor):
            yield name, value


def _is_matrix(value: Tensor) -> bool:
    return value.dim() > 1 and is_token_ids(value)


def _match(name: str, value: Tensor, looked_up: Sequence[Tensor]) -> list[Text]:
    """What of an argument was looked up as it stands: all of it, all but the last column, or some parts beside."""
    parts = {(ids.storage_offset(), ids.shape): ids for ids in looked_up if _skipped(ids, value) is not None}
    found = [Text(name, ids, _skipped(ids, value) or 0, value.shape[-1]) for ids in parts.values()]
    if any(text.ids.numel() == value.numel() for text in found):
        return [Text(name, value)]
    is_apart = sum(text.ids.numel() for text in found) <= value.numel()
    return found if is_apart else [max(found, key=lambda text: text.ids.numel())]


def _match_copy(name: str, value: Tensor, looked_up: Sequence[Tensor]) -> list[Text]:
    return [Text(name, value)] if value.shape in [ids.shape for ids in looked_up] else []


def _skipped(ids: Tensor, value: Tensor) -> int | None:
    """Columns before a part of a matrix, or before a view of all of it; None for what is no such part."""
    if ids.dim() < 2 or ids.untyped_storage()._cdata != value.untyped_storage()._cdata:
        return None
    start = ids.storage_offset() - value.storage_offset()
    if ids.numel() == value.numel():
        return 0 if start == 0 else None
    columns = start % max(value.stride(-2), 1) // max(value.stride(-1), 1)
    has_rows = ids.stride()[-1:] == value.stride()[-1:] and ids.stride(0) == value.stride(0)
    return columns if start >= 0 and has_rows and columns + ids.shape[-1] <= value.shape[-1] else None


def find_mask(inputs: Mapping[str, Any], text: Text, texts: Sequence[Text] = ()) -> Tensor | None:
    """Not 0 where a text, whose mask has a name of its own, is no padding; None without such a mask.

    Args:
        inputs: of the call, by name.
        text: whose mask is meant.
        texts: of the call; a mask that names none of them is that of the first.
    """
    is_first = not texts or text is texts[0]
    stems = _OF_INPUTS.difference(each.stem for each in texts) | {text.stem} if is_first else {text.stem}
    first, last = text.skipped, text.skipped + text.ids.shape[-1]
    told = [_read_mask(name, value, stems) for name, value in inputs.items()]
    told += [_read_lengths(name, value, stems, text) for name, value in inputs.items()]
    for mask in told:
        if mask is not None and (mask.shape[-1] >= last - first or is_turned(mask, text.ids)):
            return mask[..., first:last] if mask.shape[-1] == text.given else mask
    return None


def _read_lengths(name: str, value: Any, stems: Collection[str], text: Text) -> Tensor | None:
    """The numbers of tokens, as ``pack_padded_sequence`` takes them, also of ids that stand in columns."""
    parts = _LENGTHS.fullmatch(name)
    if parts is None or (parts["stem"] or "") not in stems or not is_token_ids(value) or text.ids.dim() != 2:
        return None
    shapes = [(len(text.ids), text.given or text.ids.shape[1]), text.ids.shape[::-1]]
    width = next((width for rows, width in shapes if value.shape == (rows,)), None)
    if width is None:
        return None
    device = text.ids.device
    return torch.arange(width, device=device) < value.to(device, non_blocking=True)[:, None]


def _read_mask(name: str, value: Any, stems: Collection[str]) -> Tensor | None:
    """A name with "pad" in it marks padding, as torch's modules have it; the others, what is none."""
    parts = _MASK.fullmatch(name)
    if parts is None or (parts["stem"] or "") not in stems or not isinstance(value, Tensor):
        return None
    marks_padding = "pad" in parts["kind"]
    is_square = value.dim() == 2 and value.shape[0] == value.shape[1] and name not in ("attention_mask", "mask")
    if value.dim() not in (1, 2, 3) or (is_square and not marks_padding):
        return None
    return torch.eq(value, 0) if marks_padding else value


def name_mask(inputs: Mapping[str, Any], names: Collection[str]) -> Mapping[str, Any]:
    """The inputs of a model with its mask as ``attention_mask``, whatever it is called.

    Args:
        inputs: by name.
        names: of the parameters: ``input_mask`` beside ``attention_mask`` is the negative of that, as XLNet has it.
    """
    tokens, negative = read_tokens(inputs), inputs.get("input_mask")
    is_named = any(isinstance(inputs.get(name), Tensor) for name in ("attention_mask", "mask"))
    if is_named or tokens is None or not any("mask" in name or _LENGTHS.fullmatch(name) for name in inputs):
        return inputs
    if isinstance(negative, Tensor) and "attention_mask" in names:
        return {**inputs, "attention_mask": negative == 0}
    mask = find_mask(inputs, Text("", tokens[..., 0] if tokens.is_floating_point() else tokens))
    return inputs if mask is None else {**inputs, "attention_mask": mask}
