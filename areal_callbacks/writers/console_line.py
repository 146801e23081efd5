"""An export in a few words, for the line that a host prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate

from areal_callbacks.core.names import DEAD_EXPERTS, MAX_OVER_IDEAL_MAX, WORST_LAYER

WIDTH = 100
UNKNOWN = "unknown"


def describe_in_words(metrics: Mapping[str, float], experts: int = 0) -> str:
    """At most six numbers in words, within 100 columns; empty if there are none.

    Args:
        metrics: of an export.
        experts: of all layers together; 0 where that is not known.
    """
    words = list(_list_words(metrics, experts))
    lengths = accumulate(len(word) + 2 for word in words)
    return ", ".join(word for word, end in zip(words, lengths) if end - 2 <= WIDTH)


def _list_words(metrics: Mapping[str, float], experts: int) -> Iterator[str]:
    seconds = metrics.get("train_perf/seconds")
    if seconds is not None:
        yield _tell(metrics, "train_perf/tokens_per_second", "{:,.0f} tok/s", f"tokens {UNKNOWN}")
        yield _tell_mfu(metrics)
    if MAX_OVER_IDEAL_MAX in metrics:
        layer = _tell(metrics, WORST_LAYER, "layer {:.0f}", "worst layer")
        yield f"{layer} at {metrics[MAX_OVER_IDEAL_MAX]:.3g} x ideal"
    if DEAD_EXPERTS in metrics:
        of = f" of {experts:,}" if experts else ""
        yield f"{metrics[DEAD_EXPERTS]:,.0f}{of} experts dead"
    mismatch = metrics.get("ppo_actor/train_infer/logp_abs_diff/avg")
    if mismatch is not None:
        yield f"mismatch {mismatch:.2g}"
    wait = metrics.get("train_perf/data_wait_seconds")
    if wait is not None and seconds is not None and wait + seconds > 0:
        yield f"waits {100 * wait / (wait + seconds):.0f} %"


def _tell(metrics: Mapping[str, float], name: str, form: str, other: str) -> str:
    return form.format(metrics[name]) if name in metrics else other


def _tell_mfu(metrics: Mapping[str, float]) -> str:
    if "train_perf/mfu" in metrics:
        return f"MFU {100 * metrics['train_perf/mfu']:.1f} %"
    return f"MFU {UNKNOWN}" if "train_perf/estimated_flops" in metrics else f"FLOPs {UNKNOWN}"
