"""What follows the layers: a language-model head by default, another one by the name of the model's class."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from areal_callbacks.flops.blocks import Macs, projection
from areal_callbacks.flops.fields import Fields

Head = Callable[[Fields], Macs]
"""How the fields become what follows the layers."""


def language_model_head(fields: Fields) -> Macs:
    """Logits at every position."""
    return projection(fields.integer("hidden_size"), fields.integer("vocab_size"))


def masked_language_model_head(*, embedding_size: str = "hidden_size", output_size: str = "") -> Head:
    """A square transformation before the logits (BERT), or one to the width of the embeddings (ELECTRA, ALBERT)."""

    def head(fields: Fields) -> Macs:
        hidden, vocabulary = fields.integer("hidden_size"), fields.integer("vocab_size")
        width = fields.integer(output_size or embedding_size)
        return projection(hidden, width) + projection(width, vocabulary)

    return head


def no_head(fields: Fields) -> Macs:
    """A model that puts out hidden states."""
    del fields
    return Macs()


@dataclass(frozen=True)
class Heads:
    """Multiply-adds of a head.

    Attributes:
        per_token: at every position.
        once: for a sequence, whatever its length; None where there is nothing.
    """

    per_token: Macs
    once: Macs | None = None


def number_of_labels(fields: Fields) -> int:
    """``num_labels``, or the entries of ``id2label`` in a saved file; transformers' default is 2."""
    labels = fields.get("id2label")
    return fields.integer("num_labels", default=len(labels) if labels else 2)


_LANGUAGE_MODELS = ("LMHeadModel", "DoubleHeadsModel", "MTModel")
"""What classes of language models end with that are not named after it (GPT-2, Marian)."""


def heads_of(model_class: str, language_model: Head, fields: Fields, *, pooled: bool) -> Heads:
    """The head of a class of transformers.

    Args:
        model_class: its name; what it ends with decides.
        language_model: the head of the architecture's language model, for every other name.
        fields: the configuration.
        pooled: whether the architecture classifies a sequence by one pooled position (encoders: a square pooler and the
            classifier), not by a score at every position (decoders).
    """
    hidden = fields.integer("hidden_size")
    if model_class.endswith("ForImageClassification"):
        return Heads(Macs(), projection(hidden, number_of_labels(fields)))
    if model_class.endswith(("ForSequenceClassification", "ForMultipleChoice")):
        labels = 1 if model_class.endswith("ForMultipleChoice") else number_of_labels(fields)
        classifier = projection(hidden, labels)
        return Heads(Macs(), projection(hidden, hidden) + classifier) if pooled else Heads(classifier)
    if model_class.endswith("ForTokenClassification"):
        return Heads(projection(hidden, number_of_labels(fields)))
    if model_class.endswith("ForQuestionAnswering"):
        return Heads(projection(hidden, 2))
    if model_class.endswith("Model") and not model_class.endswith(_LANGUAGE_MODELS):
        return Heads(Macs())
    return Heads(language_model(fields))
