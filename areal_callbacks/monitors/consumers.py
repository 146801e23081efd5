"""Which modules consume the text, the sound and the images of a batch, told by the parameters of their forwards."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple, TypeAlias, cast

from torch import Tensor, nn

from areal_callbacks.monitors.compilation import runs_compiled
from areal_callbacks.monitors.forward_inputs import has_parameter, positional_names
from areal_callbacks.safety.door import attempt

Kind: TypeAlias = Literal["text", "audio", "images"]

NAMES: dict[Kind, frozenset[str]] = {
    "text": frozenset({"input_ids", "inputs_embeds", "decoder_input_ids", "encoder_input_ids", "tokens"}),
    "audio": frozenset({"input_features", "input_values"}),
    "images": frozenset({"pixel_values", "pixel_values_videos"}),
}


class Entry(NamedTuple):
    """A module whose calls are watched, and which this does not keep.

    Attributes:
        reference: to what is called.
        names: of its positional parameters.
        consumes: what counts in its calls, unless a call inside them consumed it.
        config: the configuration that names its padding, its own or that of a model in it; of an embedding in it, else.
    """

    reference: weakref.ref[nn.Module]
    names: tuple[str, ...]
    consumes: frozenset[Kind]
    config: Any = None

    @property
    def module(self) -> nn.Module:
        """What is called; asked for while it lives."""
        return self.reference()  # type: ignore[return-value] # a cast is a call, and this stands in the step path


def find_entries(root: nn.Module) -> list[Entry]:
    """The root and the models in it, the outer ones first.

    A model is what Transformers calls so, or a module that names token ids and has more below it than an embedding.
    The innermost model that names text consumes it; one further out only what it embeds itself. A compiled module and
    one that is copied to several devices hide the calls inside them, and consume all that these would.
    """
    models = [module for module in root.modules() if is_transformers_model(module) or _takes(module, "text")]
    entries = [_make_entry(model, _find_consumed(model, models)) for model in models]
    if root in models:
        return entries
    hidden = frozenset(kind for entry in entries for kind in entry.consumes) if hides_calls(root) else frozenset()
    outermost = _make_entry(root, hidden)
    if "text" in hidden and not outermost.names:  # hands its arguments on
        outermost = outermost._replace(names=next(entry.names for entry in entries if "text" in entry.consumes))
    return [outermost, *entries]


def _make_entry(module: nn.Module, consumes: frozenset[Kind]) -> Entry:
    return Entry(weakref.ref(module), positional_names(module), consumes, _find_padding(module))


def _find_padding(module: nn.Module) -> Any:
    configs = (vars(part).get("config") for part in module.modules())
    named = (config for config in configs if isinstance(getattr(config, "pad_token_id", None), int))
    indices = (getattr(part, "padding_idx", None) for part in module.modules() if is_embedding(part))
    embedded = (SimpleNamespace(pad_token_id=index) for index in indices if index is not None)
    return next(itertools.chain(named, embedded), None)


def find_embeddings(root: nn.Module, entries: Sequence[Entry]) -> list[tuple[nn.Module, tuple[Entry, ...]]]:
    """The token embeddings of the models that consume text, each with its models.

    An embedding that shares the weights of a model's own is that model's, too.
    """
    found: dict[nn.Module, tuple[Entry, ...]] = {}
    for entry in entries:
        for table in _find_tables(entry.module) if "text" in entry.consumes else ():
            found[table] = (*found.get(table, ()), entry)
    return list(_with_tied(root, found).items())


def _with_tied(root: nn.Module, found: dict[nn.Module, tuple[Entry, ...]]) -> dict[nn.Module, tuple[Entry, ...]]:
    parts = {part for table in found for part in table.modules()}
    extended = dict(found)
    for module in root.modules():
        if is_embedding(module) and (module in found or module not in parts):
            tied = [entries for table, entries in found.items() if getattr(table, "weight", None) is module.weight]
            owners = {entry.module: entry for entry in itertools.chain(found.get(module, ()), *tied)}
            extended[module] = tuple(owners.values())
    return {module: owners for module, owners in extended.items() if owners}


def find_own_embeddings(root: nn.Module, entries: Sequence[Entry]) -> list[tuple[nn.Module, Entry]]:
    """All embeddings of modules whose arguments have no known names: of the root, if no model in it takes text, and of
    those that are none of Transformers'."""
    nameless = [] if _any_text(entries) else [entry for entry in entries if entry.module is root]
    own = [entry for entry in entries if "text" in entry.consumes and not is_transformers_model(entry.module)]
    return [(part, entry) for entry in (*nameless, *own) for part in entry.module.modules() if is_embedding(part)]


def _any_text(entries: Sequence[Entry]) -> bool:
    return any("text" in entry.consumes for entry in entries)


def _find_tables(module: nn.Module) -> list[nn.Module]:
    """That of Transformers' own accessor, or the largest."""
    accessor = getattr(module, "get_input_embeddings", None) if is_transformers_model(module) else None
    table = (
        attempt("text:embedding", "a model does not tell its embedding, the largest one is taken", accessor)
        if accessor
        else None
    )
    if isinstance(table, nn.Module):
        return [table]
    tables = [part for part in module.modules() if is_embedding(part)]
    return [max(tables, key=lambda part: len(cast("Tensor", part.weight)))] if tables else []


def is_transformers_model(module: nn.Module) -> bool:
    """It has a configuration and takes its inputs by keyword; its class says so, not what it passes on."""
    return hasattr(type(module), "base_model_prefix") and ("config" in vars(module) or hasattr(type(module), "config"))


def is_embedding(module: nn.Module) -> bool:
    """A table of vectors that integers index: torch's, or one of that name with a two-dimensional weight."""
    return "Embedding" in type(module).__name__ and getattr(getattr(module, "weight", None), "ndim", 0) == 2


def _find_consumed(module: nn.Module, models: Sequence[nn.Module]) -> frozenset[Kind]:
    inner = {part for part in module.modules() if part is not module}.intersection(models)
    kinds = [kind for kind in NAMES if _takes(module, kind)]
    return frozenset(kind for kind in kinds if hides_calls(module) or _is_innermost(module, kind, inner))


def _is_innermost(module: nn.Module, kind: Kind, inner: set[nn.Module]) -> bool:
    takers = [model for model in inner if _takes(model, kind)]
    if kind != "text" or not takers:
        return kind == "images" or not takers  # of images the outer model knows the sizes
    others = {part for model in takers for part in model.modules()}
    return any(is_embedding(part) for part in module.modules() if part not in others)


def _takes(module: nn.Module, kind: Kind) -> bool:
    if not has_parameter(module, NAMES[kind]):
        return False
    return is_transformers_model(module) or (kind == "text" and _embeds(module))


def _embeds(module: nn.Module) -> bool:
    """There is an embedding below it, and more than that."""
    parts = list(module.modules())
    matrices = (parameter for part in parts if not is_embedding(part) for parameter in part.parameters(recurse=False))
    return any(map(is_embedding, parts)) and any(parameter.ndim > 1 for parameter in matrices)


def hides_calls(module: nn.Module) -> bool:
    """What is called inside it, and looked up, is not seen: it is compiled, or copied to several devices."""
    compiled = runs_compiled(module) or "_orig_mod" in module._modules
    return compiled or isinstance(module, nn.DataParallel)
