"""Counts any training again from the operators that run, without a rule of the metrics."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.hooks import RemovableHandle

from areal_callbacks.verify import audio, experts, operator_flops
from areal_callbacks.verify.calls import ModuleCall, bind, list_calls, name_values
from areal_callbacks.verify.evidence import Evidence, gather, holds_other, holds_text, take_local
from areal_callbacks.verify.gradient_state import GradientState
from areal_callbacks.verify.rows import measure
from areal_callbacks.verify.token_tables import TokenTables, config_of, ends_texts, pad_id_of
from areal_callbacks.verify.totals import Totals

P = ParamSpec("P")

_EMBEDDED = ("inputs_embeds", "decoder_inputs_embeds")


def _note_failures(
    method: Callable[Concatenate[Recount, P], None],
) -> Callable[Concatenate[Recount, P], None]:
    """What cannot be read is noted among the totals; the training goes on."""

    @functools.wraps(method)
    def note(self: Recount, /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 - it is the recount's own
            self.totals.note(f"{method.__name__.strip('_')}: {error!r}")

    return note


class Recount(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts a training that runs while this is entered.

    ::

        with Recount(model) as recount:
            train(model)
        recount.totals.tokens, recount.totals.routed

    Looks at every call of the token embeddings, and at what experts are given. A call counts if it trains
    (:class:`~areal_callbacks.verify.gradient_state.GradientState`) and its model is in training mode. Padding and the
    borders of sequences are read from the arguments of the modules on Python's stack. While this is entered compiled
    code runs as it stands, without the compiler, and every operator passes through Python: slow, and exact. What cannot
    be read is in ``totals.unread``.

    Args:
        *models: what is trained; more may join by :meth:`add`.
        flops: count the FLOPs of operators, too.

    Attributes:
        totals: what was counted so far.
    """

    def __init__(self, *models: nn.Module, flops: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.totals = Totals()
        self._flops = flops
        self._state = GradientState()
        self._models: list[nn.Module] = []
        self._tables = TokenTables()
        self._hooks: dict[nn.Module, list[RemovableHandle]] = {}
        self._open: list[tuple[nn.Module, list[bool]]] = []
        self._entered_table: nn.Module | None = None
        self._embedded: list[Evidence] = []
        self._batch: Any = {}
        self.add(*models)

    def add(self, *models: nn.Module) -> None:
        """Count these models, too; those that are counted already are left as they are."""
        self._models += [model for model in dict.fromkeys(models) if model not in self._models]
        self._tables = TokenTables(self._models)
        for model in models:
            self._attach(model)

    def forget(self, *models: nn.Module) -> None:
        """Count these models no longer, and leave nothing behind in them."""
        self._models = [model for model in self._models if model not in models]
        self._tables, self._entered_table, self._embedded = TokenTables(self._models), None, []
        kept = {module for model in self._models for module in model.modules()}
        for module in self._hooks.keys() - kept:
            for hook in self._hooks.pop(module):
                hook.remove()

    @contextlib.contextmanager
    def given(self, batch: Any) -> Iterator[None]:
        """Read padding and borders from this batch, too, where no call on the stack knows them."""
        before, self._batch = self._batch, dict(name_values(batch))
        try:
            yield
        finally:
            self._batch = before

    def __enter__(self) -> Self:
        self._state.__enter__()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        self._state.__exit__(kind, error, trace)
        self.forget(*self._models)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.embedding.default:
            self._see_embedding(args[0], take_local(args[1]))
        elif self._flops and operator_flops.has_formula(func):
            self._see_operator(func, args, kwargs or {}, result)
        return result

    @_note_failures
    def _see_operator(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        if operator_flops.belongs_to_training(self._state):
            self.totals.flops += operator_flops.count_flops(func, args, kwargs, result)

    # -- ids

    @_note_failures
    def _see_embedding(self, weight: Tensor, ids: Tensor) -> None:
        calls = list_calls()
        table = self._table_of(weight, ids, calls)
        if table is None or not self._state.trains():
            return
        owners = [call for call in calls if self._tables.owners.get(call.module) is table]  # type: ignore[arg-type]
        if self._tables.is_owned(table) and not owners:  # embedded outside of its model, which is given the embeddings
            self._embedded.append(self._gather(ids, calls, table))
            return
        self._embedded = []
        for _, has_ids in self._open:
            has_ids[0] = True
        if (owners[0].module if owners else table).training:  # type: ignore[union-attr]
            self._count(self._gather(ids, calls, table))

    def _table_of(self, weight: Tensor, ids: Tensor, calls: list[ModuleCall]) -> nn.Module | None:
        """The table that is embedding; once a call, as an adapter of it looks up rows of its own."""
        inner = calls[0].module if calls else None
        if isinstance(inner, nn.Embedding) and holds_text(ids, calls[1:]) and self._tables.adopt(inner):
            return inner
        if not self._tables.owners and holds_other(ids, calls[1:]):
            return None
        called = next((table for call in calls for table in self._tables.tables if table is call.module), None)
        if called is None:
            return self._tables.of_weight(weight)
        entered, self._entered_table = self._entered_table, None
        return called if entered is called else None

    def _gather(self, embedded: Tensor, calls: list[ModuleCall], table: nn.Module | None) -> Evidence:
        modules = [call.module for call in calls]
        pad = pad_id_of(modules, table)
        evidence = gather(embedded, calls, self._batch, pad)
        evidence.ends = ends_texts(modules, pad)
        return evidence

    def _count(self, evidence: Evidence) -> None:
        content = b"" if evidence.ids is None else evidence.ids.numpy().tobytes()
        self.totals.add_rows(measure(evidence), evidence.shape[0] * evidence.shape[1], content)

    # -- hooks: embeddings that are given, audio, experts

    def _attach(self, model: nn.Module) -> None:
        new = {module: list[RemovableHandle]() for module in model.modules() if module not in self._hooks}
        self._hooks.update(new)
        for module in new:
            self._attach_module(module)
        for found in experts.find_experts(model):
            if found.module in new:
                self._attach_experts(found)

    def _attach_module(self, module: nn.Module) -> None:
        if any(module is table for table in self._tables.tables):
            self._hook(module, self._enter_table)
        if module in self._tables.owners:
            self._hook(module, self._open_model)
            self._hooks[module].append(module.register_forward_hook(self._close_model, always_call=True))
        if _is_innermost_audio(module):
            self._hook(module, self._see_audio)

    def _attach_experts(self, found: experts.Experts) -> None:
        self.totals.add_routed(found.layer, [0] * found.number)
        if isinstance(found.module, nn.ModuleList):
            for index, expert in enumerate(found.module):
                self._hook(expert, functools.partial(self._see_expert, found, index))
        else:
            self._hook(found.module, functools.partial(self._see_experts, found))

    def _hook(self, module: nn.Module, function: Any) -> None:
        handle = module.register_forward_pre_hook(function, with_kwargs=True, prepend=True)
        self._hooks.setdefault(module, []).append(handle)

    def _enter_table(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        self._entered_table = module

    @_note_failures
    def _open_model(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Count embeddings that a model is given, unless they were made of ids inside a model that encloses it."""
        call = bind(module, args, kwargs)
        given = [value for name in _EMBEDDED if isinstance(value := call.arguments.get(name), Tensor)]
        is_new = not any(has_ids[0] for _, has_ids in self._open)
        self._open.append((module, [bool(given)]))
        if given and is_new and module.training and self._state.trains():
            for value in given:
                self._count_given(value, list_calls() or [call])

    def _count_given(self, embeddings: Tensor, calls: list[ModuleCall]) -> None:
        """Embeddings ``[B, T, H]`` that a model is given, or fewer ids of which they were made: a prompt is no text."""
        whole, made_of = self._gather(embeddings, calls, None), self._embedded
        is_made = bool(made_of) and all(part.shape[0] == whole.shape[0] for part in made_of)
        known = sum(part.shape[1] for part in made_of)
        if is_made and (known < whole.shape[1] or (len(made_of) == 1 and known == whole.shape[1])):
            for part in made_of:
                self._count(part.fill(whole))
        else:
            self._count(whole)
        self._embedded = []

    def _close_model(self, module: nn.Module, args: Any, result: Any) -> None:
        while self._open and self._open.pop()[0] is not module:
            pass

    @_note_failures
    def _see_audio(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if module.training and self._state.trains():
            call = bind(module, args, kwargs)
            self.totals.input_frames += audio.count_frames(call.arguments, config_of(module))

    @_note_failures
    def _see_experts(self, found: experts.Experts, module: nn.Module, args: Any, kwargs: Any) -> None:
        if module.training and self._state.trains():
            counts = experts.count_indices(found, [*args, *kwargs.values()])
            if counts is None:
                self.totals.note(f"{type(module).__name__}: no indices of experts among its arguments")
            else:
                self._add_routed(found, counts)

    @_note_failures
    def _see_expert(self, found: experts.Experts, index: int, module: nn.Module, args: Any, kwargs: Any) -> None:
        if module.training and self._state.trains():
            counts = [0] * found.number
            counts[index] = experts.count_rows([*args, *kwargs.values()])
            self._add_routed(found, counts)

    def _add_routed(self, found: experts.Experts, counts: list[int]) -> None:
        if (number := experts.count_experts(found.module)) not in (0, found.number):  # 0: FSDP holds the weights
            self.totals.note(f"layer {found.layer}: {number} experts, which were {found.number}")
        self.totals.add_routed(found.layer, counts)


def _is_innermost_audio(module: nn.Module) -> bool:
    inner = [part for part in module.modules() if audio.takes_audio(part, bind(part, (), {}).parameters)]
    return inner == [module]
