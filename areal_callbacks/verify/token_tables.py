"""Which embeddings hold a vocabulary, and which modules own them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import nn


class TokenTables:
    """The token embeddings of models.

    Those that Transformers-like modules name by ``get_input_embeddings()``, and, in a model without any such module,
    every ``nn.Embedding`` with the most rows.

    Attributes:
        owners: module → the table that it names; empty for models of other kinds.
        tables: every table.
    """

    def __init__(self, models: Iterable[nn.Module] = ()) -> None:
        self.owners: dict[nn.Module, nn.Module] = {}
        self.tables: list[nn.Module] = []
        for model in models:
            self._add(model)

    def _add(self, model: nn.Module) -> None:
        named = dict(_list_owners(model))
        self.owners.update(named)
        found = list(named.values()) or _largest(model)
        self.tables.extend(table for table in found if not any(table is known for known in self.tables))

    def is_owned(self, table: nn.Module) -> bool:
        """Whether a Transformers-like module names this table as its own."""
        return any(other is table for other in self.owners.values())

    def adopt(self, table: nn.Embedding) -> bool:
        """Take an embedding that was given ids of the batch for a table, too, where no module names its own."""
        if table not in self.tables and not self.owners:
            self.tables.append(table)
        return table in self.tables

    def of_weight(self, weight: Any) -> nn.Module | None:
        """The table that these are the weights of."""
        return next((table for table in self.tables if any(weight is own for own in table.parameters())), None)


def pad_id_of(modules: Iterable[nn.Module | None], table: nn.Module | None) -> int | None:
    """The id that the innermost configuration, else the table, names as padding."""
    for part in _list_configs(modules):
        pad = getattr(part, "pad_token_id", None)
        if isinstance(pad, int):
            return pad
    pad = getattr(table, "padding_idx", None)
    return pad if isinstance(pad, int) else None


def ends_texts(modules: Iterable[nn.Module | None], pad: int | None) -> bool:
    """Whether a configuration gives the padding id to the end or the beginning of a text, too."""
    parts = list(_list_configs(modules))
    named = [getattr(part, f"{name}_token_id", None) for part in parts for name in ("bos", "eos", "sep", "cls")]
    return pad is not None and any(pad in value if isinstance(value, list) else pad == value for value in named)


def config_of(module: nn.Module | None) -> Any:
    """Its configuration; None if it has none, or raises when it is asked."""
    try:
        return getattr(module, "config", None)
    except Exception:  # noqa: BLE001 - it may be any property
        return None


def _list_configs(modules: Iterable[nn.Module | None]) -> Iterator[Any]:
    """Their configurations, each with its part for text."""
    for module in modules:
        config = config_of(module)
        yield from (config, getattr(config, "text_config", None))


def _list_owners(model: nn.Module) -> Iterator[tuple[nn.Module, nn.Module]]:
    for module in model.modules():
        find = getattr(module, "get_input_embeddings", None)
        try:
            table = find() if callable(find) else None
        except Exception:  # noqa: BLE001 - models without text raise whatever they like
            continue
        if isinstance(table, nn.Module) and _is_table(table):
            yield module, table


def _is_table(module: nn.Module) -> bool:
    """An embedding, or an adapter around one."""
    return any(isinstance(part, nn.Embedding) for part in module.modules()) and len(list(module.modules())) < 16


def _largest(model: nn.Module) -> list[nn.Module]:
    """The embeddings with the most rows: several in a composite of equal models."""
    tables = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    most = max((table.num_embeddings for table in tables), default=0)
    return [table for table in tables if table.num_embeddings == most]
