"""The policy metrics written down once more, with NumPy in float64 and nothing of the package."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

THRESHOLDS = (1.5, 2, 3, 5, 10)

Floats = npt.NDArray[np.float64]


def compared(trainer: npt.ArrayLike, rollout: npt.ArrayLike, mask: npt.ArrayLike) -> tuple[Floats, Floats]:
    """Both log-probabilities of the masked tokens, float64 ``[n]``, from arrays of any one shape."""
    chosen = np.asarray(mask, dtype=bool)
    return np.asarray(trainer, dtype=np.float64)[chosen], np.asarray(rollout, dtype=np.float64)[chosen]


def specified(trainer: npt.ArrayLike, rollout: npt.ArrayLike, mask: npt.ArrayLike) -> dict[str, float]:
    """Metrics of the specification over the masked tokens; arrays of any one shape."""
    trainer, rollout = compared(trainer, rollout, mask)
    with np.errstate(all="ignore"):
        d = trainer - rollout
        finite = np.isfinite(trainer) & np.isfinite(rollout)
        values = {
            "logp_diff/avg": d.mean(),
            "logp_diff/min": d.min(),
            "logp_diff/max": d.max(),
            "logp_abs_diff/avg": np.abs(d).mean(),
            "logp_abs_diff/min": np.abs(d).min(),
            "logp_abs_diff/max": np.abs(d).max(),
            "logp_diff_squared": (d**2).mean(),
            "trainer_nll": -trainer.mean(),
            "rollout_nll": -rollout.mean(),
            "kl_k1": -d.mean(),
            "kl_k2": (d**2 / 2).mean(),
            "kl_k3": (np.expm1(d) - d).mean(),
            "nonfinite_logp_fraction": np.mean(~finite),
            "kl_k3_overflow_fraction": np.mean(finite & np.isposinf(np.expm1(d))),
            "n_valid_tokens": float(len(d)),
        }
        tails = {t: np.mean(np.abs(d) > np.log(t)) if finite.all() else np.nan for t in THRESHOLDS}
    return values | {f"ratio_outside_{t}": tail for t, tail in tails.items()}


def scales(trainer: npt.ArrayLike, rollout: npt.ArrayLike, mask: npt.ArrayLike) -> dict[str, float]:
    """What an error of a mean is relative to: the mean absolute value of what is averaged."""
    trainer, rollout = compared(trainer, rollout, mask)
    d = trainer - rollout
    size = np.abs(d).mean()
    return {
        "logp_diff/avg": size,
        "kl_k1": size,
        "logp_abs_diff/avg": size,
        "logp_diff_squared": (d**2).mean(),
        "kl_k2": (d**2).mean() / 2,
        "kl_k3": np.abs(np.expm1(d) - d).mean(),
        "trainer_nll": np.abs(trainer).mean(),
        "rollout_nll": np.abs(rollout).mean(),
    }


def surrogate(
    ratio: Floats, advantages: Floats, bounds: tuple[float, float] = (0.8, 1.2), dual: float | None = None
) -> Floats:
    """PPO's objective per token, negated; with dual clip max(·, dual A) where A < 0."""
    objective = np.minimum(ratio * advantages, np.clip(ratio, *bounds) * advantages)
    if dual is not None:
        objective = np.where(advantages < 0, np.maximum(objective, dual * advantages), objective)
    return -objective


def update_statistics(
    mask: npt.ArrayLike,
    tensors: Mapping[str, npt.ArrayLike],
    *,
    bounds: tuple[float, float],
    dual: float | None,
    sequence_level: bool,
) -> dict[str, float]:
    """The statistics of an update; ``tensors`` has new_logp, old_logp, advantages and entropy, ``[B, T]`` each."""
    valid = np.asarray(mask, dtype=bool)
    values = {name: np.asarray(tensor, dtype=np.float64) for name, tensor in tensors.items()}
    gap = values["new_logp"] - values["old_logp"]
    means = np.array([row[chosen].mean() if chosen.any() else 0.0 for row, chosen in zip(gap, valid)])
    ratio = np.exp(np.broadcast_to(means[:, None], gap.shape) if sequence_level else gap)[valid]
    advantages = values.pop("advantages")[valid]
    low, high = (ratio < bounds[0]) & (advantages < 0), (ratio > bounds[1]) & (advantages > 0)
    twice = (ratio > (np.inf if dual is None else dual)) & (advantages < 0)
    columns = {name: tensor[valid] for name, tensor in values.items()}
    columns |= {"importance_weight": ratio, "approx_kl": gap[valid], "clip_ratio": low | high, "clip_ratio_low": low}
    columns |= {"clip_ratio_high": high, "dual_clip_ratio": twice}
    columns["actor_loss"] = surrogate(ratio, advantages, bounds, dual)
    counts = {"n_valid_tokens": valid.sum(), "clipped_tokens": (low | high).sum(), "dual_clipped_tokens": twice.sum()}
    return {
        **counts,
        **{key: value for name, column in columns.items() for key, value in summary(name, column).items()},
    }


def summary(name: str, values: npt.ArrayLike) -> dict[str, float]:
    """Average and extrema under the keys of a statistic."""
    column = np.asarray(values, dtype=np.float64)
    return {f"{name}/avg": column.mean(), f"{name}/min": column.min(), f"{name}/max": column.max()}


def below(prefix: str, metrics: Mapping[str, float]) -> dict[str, float]:
    """The metrics below a prefix, without it."""
    return {name.removeprefix(prefix): value for name, value in metrics.items() if name.startswith(prefix)}
