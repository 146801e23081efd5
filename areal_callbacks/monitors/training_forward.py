"""The one rule for which forwards are training forwards, and which of them consume a batch."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.compiler import is_compiling

from areal_callbacks.monitors.captured import is_captured
from areal_callbacks.monitors.compilation import runs_compiled
from areal_callbacks.monitors.consumers import Entry, find_embeddings, find_entries, find_own_embeddings
from areal_callbacks.monitors.forward_call import ForwardCall, ForwardListener, read_lookup
from areal_callbacks.monitors.forward_inputs import positional_names, read_running
from areal_callbacks.monitors.lookups import Lookup, OutsideLookups
from areal_callbacks.monitors.recomputation import is_recomputation
from areal_callbacks.monitors.watched_modules import WatchedModules
from areal_callbacks.safety.door import Observer
from areal_callbacks.safety.hooks import Attachments


class TrainingForward(Observer):
    """Knows, while a forward runs, whether it is one that trains.

    Asked where a model is entered: training mode, gradients enabled, not a recomputation, not traced. So evaluation,
    ``no_grad`` forwards, generation and activation recomputation do not count, and what runs inside a counting forward
    does, also under reentrant checkpointing, which hides the gradients from inner modules. A model inside another
    decides for itself: a reference model runs under ``no_grad`` inside a training step.

    Every training call of the innermost model that takes a kind of input consumes it once; a call that raises consumes
    nothing.

    A model whose ``forward`` the loop calls, so that no hook sees it, begins where its embedding is looked up.

    Attributes:
        forwards: training forwards so far.
        in_training_call: a call runs that trains; such calls have an end, after which :attr:`at_end` is called.
        at_end: called without arguments when an outermost call has ended, however it ended; must not raise.
    """

    family = "training_forward"

    def __init__(self, listener: ForwardListener | None = None) -> None:
        self.forwards = 0
        self.in_training_call = False
        self.at_end: list[Callable[[], None]] = []
        self._ignoring = False
        self._listener = listener
        self._modules = WatchedModules()
        self._call: ForwardCall | None = None
        self._outside = OutsideLookups()
        self._begun_outside: int | None = None
        self._attachments = Attachments(self)

    @property
    def active(self) -> bool:
        """Inside a training forward now. Read by counting operators at run time."""
        if self._call is not None:
            return self._call.trains
        return self._begun_outside == torch._C._current_graph_task_id()  # not in a backward that follows

    def attach(
        self, roots: Iterable[nn.Module], *, inputs_of: Iterable[nn.Module] | None = None, padding: Any = None
    ) -> None:
        """Hook the modules that the training loop calls, and the models nested in them.

        Args:
            roots: the outermost modules.
            inputs_of: the roots whose inputs the listener is told; all by default.
            padding: names the number of padding where no configuration does.
        """
        roots = list(roots)
        readable = set(roots if inputs_of is None else inputs_of)
        for root in roots:
            entries = [entry._replace(config=entry.config or padding) for entry in find_entries(root)]
            self._modules.of(root).has_models = _has_text(entries)
            for entry in entries:
                self._watch(entry, tells_inputs=root in readable)
            for module, owners in find_embeddings(root, entries):
                self._attachments.hook(module.register_forward_pre_hook, functools.partial(self._embed, owners))
            for module, entry in find_own_embeddings(root, entries):
                self._attachments.hook(module.register_forward_pre_hook, functools.partial(self._embed_inside, entry))

    def _embed(self, owners: tuple[Entry, ...], module: nn.Module, args: tuple[Any, ...]) -> None:
        """Note what is looked up outside of a call of the model: it is given the embeddings, or runs uncalled."""
        if is_compiling() or not args or not isinstance(args[0], torch.Tensor):
            return
        call = self._call
        if call is not None and call.outer is not None and call.entry is owners[0]:  # in a call of the model itself
            return
        trains, calls = self._trains(owners[0].module), list(self._open_calls())
        is_uncalled = trains and not self._modules.of(owners[0].module).was_called
        lookup = Lookup(owners, args[0], read_running(owners[0].module) if is_uncalled else {})
        if not calls:
            self._embed_outside(lookup, trains=trains)
        elif trains and not any(lookup.is_of(call.module) for call in calls[:-1]):
            calls[-1].embedded = (*calls[-1].embedded, lookup)

    def _embed_inside(self, entry: Entry, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Note what is looked up in a call of a module that does not name its text."""
        if is_compiling():
            return
        call = next((call for call in self._open_calls() if call.module is entry.module), None)
        if call is not None and call.trains and args and isinstance(args[0], torch.Tensor):
            call.looked_up = (*call.looked_up, args[0])

    def _embed_outside(self, lookup: Lookup, *, trains: bool) -> None:
        self._begun_outside = torch._C._current_graph_task_id() if trains else None
        if not trains:
            return
        self._outside.add(lookup)
        entry, module = lookup.entries[0], lookup.entries[0].module
        if "text" in entry.consumes and not self._modules.of(module).was_called and self._listener is not None:
            self.forwards += 1
            self._listener.on_forward(module)
            self._listener.on_embedded(read_lookup(lookup, None))

    def _watch(self, entry: Entry, *, tells_inputs: bool) -> None:
        module = entry.module
        known = self._modules.of(module)
        known.tells_inputs = known.tells_inputs and tells_inputs
        if known.entry is not None:
            return
        known.entry = entry
        if not runs_compiled(module):
            self._attachments.hook(module.register_forward_pre_hook, self._before_eager, with_kwargs=True)
            self._attachments.hook(module.register_forward_hook, self._after_eager, always_call=True)
            if type(module).__setattr__ is nn.Module.__setattr__:  # a wrapper hands attributes on to what it wraps
                self._attachments.wrap(module, "compile", functools.partial(self._around_compile, entry))
        else:
            self._stay_outside(entry)

    def _stay_outside(self, entry: Entry) -> None:
        """``module.compile()`` traces the hooks, which are not called then."""
        self._wrap(entry, "_compiled_call_impl")

    def _around_compile(self, entry: Entry, /, *args: Any, **kwargs: Any) -> Generator[None]:
        yield
        module = entry.module
        if runs_compiled(module):
            known = self._modules.of(module)
            known.entry = find_entries(module)[0]._replace(config=(known.entry or entry).config)
            self._stay_outside(known.entry)

    def attach_method(self, module: nn.Module, name: str) -> None:
        """Treat a call of ``module.<name>`` as a forward of the module, for hosts that do not use ``__call__``."""
        self._modules.of(module).has_models = _has_text(find_entries(module))
        self._wrap(Entry(weakref.ref(module), positional_names(module, name), frozenset()), name)

    def ignore_calls(self, owner: object, name: str) -> None:
        """No forward inside a call of ``owner.<name>`` trains, whatever it looks like: a host tries out shapes, say."""
        self._attachments.wrap(owner, name, self._ignore)

    def _ignore(self, *args: Any, **kwargs: Any) -> Generator[None]:
        before, self._ignoring = self._ignoring, True
        try:
            yield
        finally:
            self._ignoring = before

    def detach(self) -> None:
        self._attachments.undo()
        self._modules.clear()
        self._outside.take()
        self._call = self._begun_outside = None
        self.in_training_call = False

    def _wrap(self, entry: Entry, name: str) -> None:
        self._attachments.wrap(entry.module, name, functools.partial(self._around, entry))

    def _before_eager(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if is_compiling():
            return
        known = self._modules.find(module)  # none for the copy of a module on another device
        if known is not None and known.entry is not None:
            self._enter(known.entry, args, kwargs)

    def _after_eager(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if is_compiling():
            return
        known = self._modules.find(module)
        if known is not None and known.entry is not None:
            self._leave(known.entry)

    def _around(self, entry: Entry, /, *args: Any, **kwargs: Any) -> Generator[None]:
        self._enter(entry, args, kwargs)
        try:
            yield
        finally:
            self._leave(entry)

    def _enter(self, entry: Entry, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        outer, module = self._call, entry.module
        if outer is not None and (again := self._find_open(entry)) is not None:
            outer = again.outer  # it was interrupted: torch calls no hook for KeyboardInterrupt
        trains = self._trains(module)
        self.forwards += trains and not (outer is not None and outer.trains)
        self._call = ForwardCall(entry, outer, args, kwargs, trains=trains)
        self.in_training_call = trains
        if trains and outer is None:
            self._call.embedded_before = self._outside.take()
        if self._listener is None:
            return
        if trains:
            self._listener.on_forward(module)
        elif outer is None:
            self._listener.on_untrained_forward()

    def _trains(self, module: nn.Module) -> bool:
        if not module.training or self._ignoring or not torch.is_grad_enabled():
            return False
        return not is_recomputation() and not is_captured()

    def _open_calls(self) -> Iterator[ForwardCall]:
        if self._call is not None:
            yield self._call
            yield from self._call.around()

    def _find_open(self, entry: Entry) -> ForwardCall | None:
        call = self._call
        while call is not None and call.entry is not entry:
            call = call.outer
        return call

    def _leave(self, entry: Entry) -> None:
        call = self._call
        if call is None or (call.entry is not entry and (call := self._find_open(entry)) is None):
            return
        outer = self._call = call.outer
        if outer is not None:
            self.in_training_call = outer.trains
        else:
            self.in_training_call = False
            for end in self.at_end:
                end()
        if call.trains and sys.exc_info()[1] is call.error and self._listener is not None:
            self._consume(call, self._listener)

    def _consume(self, call: ForwardCall, listener: ForwardListener) -> None:
        known = self._modules.of(call.module)
        if not known.tells_inputs:
            return
        known.was_called = True
        for kind in call.entry.consumes - call.consumed:
            call.consumed.add(kind)
            listener.on_consumed(kind, call)
        if call.outer is None and known.has_models and "text" not in call.consumed:
            for lookup in call.embedded:
                call.consumed.add("text")
                listener.on_consumed("text", read_lookup(lookup, call))
        if call.outer is not None:
            call.outer.consumed |= call.consumed
        else:
            listener.on_outermost(call, has_models=known.has_models is not False)


def _has_text(entries: Iterable[Entry]) -> bool:
    return any("text" in entry.consumes for entry in entries)
