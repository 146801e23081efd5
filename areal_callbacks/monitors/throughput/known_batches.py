"""Reads the batches of models' calls; how one is to be read is found out once for each form of a call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

from torch import Tensor

from areal_callbacks.monitors.forward_call import ForwardCall
from areal_callbacks.monitors.throughput.lengths import Lengths, Rows
from areal_callbacks.monitors.throughput.model_lengths import model_lengths
from areal_callbacks.monitors.throughput.token_batch import READ_NAMES

Form: TypeAlias = tuple[Any, ...]
"""What reading a call depends on, beside the contents of its tensors and the number of padding."""

_MOST_FORMS = 4096


class _Rule(NamedTuple):
    """What alone tells the lengths of calls of one form.

    Attributes:
        depth: of the call whose mask it is, counted from the model's own outwards; None where each row is full.
        name: of the mask.
        rows: of the batch.
        width: of a row.
        padding: its numbers in the calls' configurations, which make full rows.
    """

    depth: int | None
    name: str
    rows: int
    width: int
    padding: tuple[Any, ...] = ()


class _Names(NamedTuple):
    """The arguments of a call, by their kinds.

    Attributes:
        number: of these kinds, for the form of a call.
        tensors: the names of those that are tensors; None where shapes do not tell what the call was given.
    """

    number: int
    tensors: tuple[str, ...] | None


class KnownBatches:
    """Reads what models are given in their calls.

    The rules for masks, positions, labels and packings are many steps of Python, and of most batches they say that the
    mask alone tells the lengths, or the shape. That depends on the form of the call only: it is kept.
    """

    def __init__(self) -> None:
        self._rules: dict[Form, _Rule | None] = {}
        self._names: dict[Form, _Names] = {}

    def read(self, call: ForwardCall) -> Lengths | Rows | None:
        """See :func:`~areal_callbacks.monitors.throughput.model_lengths.model_lengths`."""
        form = self._form_of(call)
        rule = None if form is None else self._rules.get(form)
        if rule is None:
            return self._find(call, form)
        if rule.depth is None:
            return Rows(rule.rows, rule.width, None) if rule.padding == _find_padding(call) else model_lengths(call)
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

    def _form_of(self, call: ForwardCall) -> Form | None:
        """None for what shapes do not tell. Few steps: each costs what some cost in a loop.

        Of what was given without a name only the model's own counts.
        """
        if call.looked_up:
            return None
        form: list[Any] = []
        each: ForwardCall | None = call
        while each is not None:
            named, listed = each.inputs
            kinds = (id(each.module), *named, *map(type, named.values()))
            number, tensors = self._names.get(kinds) or self._find_names(kinds, named)
            if tensors is None or (listed and each is call):
                return None
            form.append(number)
            for name in tensors:
                value = named[name]
                form += value.shape, value.dtype
            each = each.outer
        return tuple(form)

    def _find_names(self, kinds: Form, named: Mapping[str, Any]) -> _Names:
        if len(self._names) >= _MOST_FORMS:
            self._names.clear()
            self._rules.clear()
        found = self._names[kinds] = _Names(len(self._names), _find_tensors(named))
        return found


def _find_tensors(named: Mapping[str, Any]) -> tuple[str, ...] | None:
    """None for tensors of other classes, masks in a mapping, embeddings."""
    if named.get("inputs_embeds") is not None or any(_is_opaque(name, value) for name, value in named.items()):
        return None
    return tuple(name for name, value in named.items() if type(value) is Tensor)


def _is_opaque(name: str, value: Any) -> bool:
    """Its type does not tell its shape. What a batch holds stands beside it under its own name."""
    if type(value) is Tensor:
        return False
    return isinstance(value, Tensor) or (isinstance(value, Mapping) and name in READ_NAMES)


def _find_padding(call: ForwardCall) -> tuple[Any, ...]:
    return tuple(getattr(each.entry.config, "pad_token_id", None) for each in (call, *call.around()))


def _find_rule(call: ForwardCall, lengths: Lengths) -> _Rule | None:
    if lengths.is_paired:
        return None
    if lengths.is_full:
        return _Rule(None, "", len(lengths.values), lengths.bound, _find_padding(call))
    for depth, each in enumerate([call, *call.around()]):
        for name, value in each.inputs.named.items():
            if lengths.marks is not None and _is_same(value, lengths.marks):
                return _Rule(depth, name, *lengths.marks.shape)
    return None


def _is_same(given: Any, marks: Tensor) -> bool:
    is_alike = type(given) is Tensor and given.shape == marks.shape and given.stride() == marks.stride()
    return is_alike and given.dtype == marks.dtype and given.data_ptr() == marks.data_ptr()
