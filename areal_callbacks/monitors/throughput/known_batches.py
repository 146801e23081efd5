"""Reads the batches of models' calls; how one is to be read is found out once for each form of a call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

from torch import Tensor

from areal_callbacks.monitors.forward_call import ForwardCall
from areal_callbacks.monitors.throughput.lengths import Lengths, Rows
from areal_callbacks.monitors.throughput.model_lengths import model_lengths

Form: TypeAlias = tuple[Any, ...]
"""What reading a call depends on, beside the contents of its tensors: names, shapes, dtypes, the number of padding."""

_MOST_FORMS = 4096


class _Rule(NamedTuple):
    """What alone tells the lengths of calls of one form.

    Attributes:
        depth: of the call whose mask it is, counted from the model's own outwards; None where each row is full.
        name: of the mask.
        rows: of the batch.
        width: of a row.
    """

    depth: int | None
    name: str
    rows: int
    width: int


class KnownBatches:
    """Reads what models are given in their calls.

    The rules for masks, positions, labels and packings are many steps of Python, and of most batches they say that the
    mask alone tells the lengths, or the shape. That depends on the form of the call only: it is kept.
    """

    def __init__(self) -> None:
        self._rules: dict[Form, _Rule | None] = {}

    def read(self, call: ForwardCall) -> Lengths | Rows | None:
        """See :func:`~areal_callbacks.monitors.throughput.model_lengths.model_lengths`."""
        form = _form_of(call)
        rule = None if form is None else self._rules.get(form)
        if rule is None:
            return self._find(call, form)
        if rule.depth is None:
            return Rows(rule.rows, rule.width, None)
        for _ in range(rule.depth):
            call = call.outer or call
        return Rows(rule.rows, rule.width, call.inputs.named[rule.name])

    def _find(self, call: ForwardCall, form: Form | None) -> Lengths | None:
        lengths = model_lengths(call)
        if form is not None and form not in self._rules and lengths is not None:
            if len(self._rules) >= _MOST_FORMS:
                self._rules.clear()
            self._rules[form] = _find_rule(call, lengths)
        return lengths


def _form_of(call: ForwardCall) -> Form | None:
    """None for what shapes do not tell: tensors of other classes, masks in a mapping, what else was looked up."""
    if call.looked_up or call.inputs.listed or call.inputs.named.get("inputs_embeds") is not None:
        return None
    form: list[Any] = []
    each: ForwardCall | None = call
    while each is not None:
        form += id(each.entry.module), getattr(each.entry.config, "pad_token_id", None)
        for name, value in each.inputs.named.items():
            kind = type(value)
            if kind is Tensor:
                form += name, value.dtype, value.shape
            elif isinstance(value, Tensor) or (isinstance(value, Mapping) and "full_attention" in value):
                return None
            elif value is not None:
                form += name, kind
        each = each.outer
    return tuple(form)


def _find_rule(call: ForwardCall, lengths: Lengths) -> _Rule | None:
    if lengths.is_paired:
        return None
    if lengths.is_full:
        return _Rule(None, "", len(lengths.values), lengths.bound)
    for depth, each in enumerate([call, *call.around()]):
        for name, value in each.inputs.named.items():
            if lengths.marks is not None and _is_same(value, lengths.marks):
                return _Rule(depth, name, *lengths.marks.shape)
    return None


def _is_same(given: Any, marks: Tensor) -> bool:
    is_alike = type(given) is Tensor and given.shape == marks.shape and given.stride() == marks.stride()
    return is_alike and given.dtype == marks.dtype and given.data_ptr() == marks.data_ptr()
