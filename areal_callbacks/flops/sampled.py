"""Encoders of audio samples: strided convolutions make frames of them, and layers of attention read the frames."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from areal_callbacks.flops.estimator import TRAINING_FLOPS_PER_MAC, TrainingFlops, check_length
from areal_callbacks.flops.fields import Fields
from areal_callbacks.flops.layers import Stack


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution without padding.

    Attributes:
        kernel: samples that an output reads.
        stride: samples between outputs.
        macs: multiply-adds of an output.
    """

    kernel: int
    stride: int
    macs: int

    def outputs(self, length: int) -> int:
        """How many a sequence of ``length`` gives."""
        return max(0, (length - self.kernel) // self.stride + 1)


@dataclass(frozen=True, slots=True)
class SampledFlops:
    """Forward and backward FLOPs of one sequence of samples.

    Attributes:
        convolutions: in their order.
        frames: of the sequence that they leave.
    """

    convolutions: tuple[Convolution, ...]
    frames: TrainingFlops

    def __call__(self, length: int) -> int:
        """FLOPs of ``length`` samples. Raises TypeError or ValueError for what is no length."""
        lengths = [check_length(length), *self.lengths(length)]
        macs = sum(conv.macs * outputs for conv, outputs in zip(self.convolutions, lengths[1:], strict=True))
        return TRAINING_FLOPS_PER_MAC * macs + self.frames(lengths[-1])

    def lengths(self, samples: int) -> Iterator[int]:
        """The length behind each convolution."""
        for convolution in self.convolutions:
            samples = convolution.outputs(samples)
            yield samples


@dataclass(frozen=True)
class Sampled:
    """One row of the table of architectures.

    Attributes:
        stack: of the frames.
    """

    stack: Stack

    def compile(self, config: Any, model_type: str, model_class: str = "") -> SampledFlops:
        """Read a configuration once. Raises ValueError for a missing or malformed field."""
        return SampledFlops(
            tuple(self.convolutions(Fields(config, model_type))), self.stack.compile(config, model_type, model_class)
        )

    def convolutions(self, fields: Fields) -> Iterator[Convolution]:
        """Those of the feature encoder, from ``conv_dim``, ``conv_kernel`` and ``conv_stride`` (wav2vec 2.0)."""
        read = [fields.sequence(name) for name in ("conv_dim", "conv_kernel", "conv_stride")]
        if not all(read) or len({len(values or ()) for values in read}) != 1:
            raise fields.error("'conv_dim', 'conv_kernel' and 'conv_stride' must be lists of one length")
        channels = 1
        for width, kernel, stride in zip(*(values or () for values in read), strict=True):
            yield Convolution(kernel, stride, channels * width * kernel)
            channels = width
