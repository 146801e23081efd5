"""From a model's configuration to its FLOPs estimator."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from areal_callbacks.flops.encoder_decoder import EncoderDecoderFlops
from areal_callbacks.flops.estimator import check_length
from areal_callbacks.flops.fields import ABSENT, read_field
from areal_callbacks.flops.models import (
    ARCHITECTURES,
    TEXT_TOWERS,
    WITHOUT_LANGUAGE_MODEL,
    Architecture,
)

Estimator = Callable[..., int | float]
"""Training FLOPs of one sequence of the given length; where :func:`takes_pairs`, of a source and a target."""

Factory = Callable[[Any], Estimator]
"""Takes a configuration, returns an estimator."""

_registered: dict[str, Factory] = {}


@dataclass(frozen=True)
class CheckedEstimator:
    """A registered estimator behind the checks of the built-in ones.

    Attributes:
        model_type: the type that it was registered for.
        estimate: what the factory returned.
    """

    model_type: str
    estimate: Estimator

    def __call__(self, length: int, target_length: int | None = None) -> int | float:
        """FLOPs of one sequence, or of a source and a target. Raises TypeError or ValueError for what is no length."""
        if target_length is None:
            return self.estimate(check_length(length))
        return self.estimate(check_length(length), check_length(target_length))

    @property
    def takes_pairs(self) -> bool:
        """Whether the formula needs the lengths of two sequences."""
        try:
            inspect.signature(self.estimate).bind(0)
        except (TypeError, ValueError):
            return _accepts_two(self.estimate)
        return False


def _accepts_two(estimate: Callable[..., Any]) -> bool:
    try:
        inspect.signature(estimate).bind(0, 0)
    except (TypeError, ValueError):
        return False
    return True


def takes_pairs(estimator: Estimator) -> bool:
    """Whether an estimator needs the lengths of a source and a target to be right."""
    return isinstance(estimator, EncoderDecoderFlops) or getattr(estimator, "takes_pairs", False) is True


def register_flops_estimator(model_type: str, factory: Factory) -> None:
    """Estimate models of a type with your own formula, in this process; replaces any earlier one, built in or not.

    Args:
        model_type: ``config.model_type`` of the models.
        factory: takes the configuration (of a composite model, the part whose model_type this is) and returns a
            callable whose only input is the length of one sequence and whose result is its training FLOPs. For a
            model of two sequences the callable takes both lengths, source and target.

    Raises:
        ValueError: model_type is empty.
        TypeError: model_type is no string or factory is not callable.
    """
    if not isinstance(model_type, str):
        raise TypeError(f"model_type must be a string, not {model_type!r}")
    if not model_type:
        raise ValueError("model_type must not be empty")
    if not callable(factory):
        raise TypeError(f"the factory for model type {model_type!r} must be callable, not {factory!r}")
    _registered[model_type] = factory


def get_flops_estimator(config: Any, *, model_class: str = "") -> Estimator | None:
    """The estimator for a model, from the dimensions in its configuration; names of checkpoints play no part.

    A registered factory for ``config.model_type`` comes first; then ``config.text_config`` (or the thinker's), if there
    is one, by its own type; then the built-in formula for ``config.model_type``, which reads the text configuration.

    Args:
        config: an object such as a Hugging Face configuration, or a mapping such as a parsed config.json.
        model_class: name of the class that is trained, where its head is another than the language model's:
            ``"BertForSequenceClassification"``; registered factories do not see it.

    Returns:
        A callable of one sequence length (a nonnegative int), or None for an unknown model type. Sum its results over
        sequences; the estimate of a summed length is too high. Of an encoder–decoder it is an
        :class:`~areal_callbacks.flops.encoder_decoder.EncoderDecoderFlops`, which also takes the lengths of both
        sequences: with one, it takes both to be of that length.

    Raises:
        ValueError: the configuration of a built-in type lacks a field or has a malformed one.
        TypeError: a registered factory did not return a callable.
    """
    model_type, text = _model_type(config), _language_part(config)
    if model_type in _registered:
        return _from_factory(model_type, config)
    if model_type in WITHOUT_LANGUAGE_MODEL:
        return None
    if text is not None and (found := get_flops_estimator(text, model_class=model_class)) is not None:
        return found
    architecture = find_architecture(config)
    return None if architecture is None else architecture[1].compile(architecture[2], architecture[0], model_class)


def find_architecture(config: Any) -> tuple[str, Architecture, Any] | None:
    """The built-in architecture of a configuration; None if there is none.

    Returns:
        The model type, its row of the table, and the configuration that holds the dimensions: the language part's, if
        there is one.
    """
    model_type, text = _model_type(config), _language_part(config)
    if model_type in WITHOUT_LANGUAGE_MODEL:
        return None
    if text is not None and (found := find_architecture(text)) is not None:
        return found
    architecture = ARCHITECTURES.get(model_type)
    return None if architecture is None else (model_type, architecture, config if text is None else text)


def supported_model_types() -> tuple[str, ...]:
    """Built-in and registered model types, sorted."""
    return tuple(sorted(ARCHITECTURES.keys() | _registered.keys()))


def _model_type(config: Any) -> str:
    value = read_field(config, "model_type")
    return value if isinstance(value, str) else ""


def _language_part(config: Any) -> Any:
    parts = (read_field(config, name) for name in ("text_config", "thinker_config"))
    found = next((part for part in parts if part is not ABSENT and part is not None), None)
    return None if _model_type(found) in TEXT_TOWERS else found  # a text tower is no language model


def _from_factory(model_type: str, config: Any) -> Estimator:
    estimate = _registered[model_type](config)
    if not callable(estimate):
        raise TypeError(f"the FLOPs factory for model type {model_type!r} returned {estimate!r}, not a callable")
    return CheckedEstimator(model_type, estimate)
