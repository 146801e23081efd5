"""The train/rollout metrics written down once more, with NumPy in float64 and nothing of the package."""

from __future__ import annotations

import numpy as np

THRESHOLDS = (1.5, 2, 3, 5, 10)


def specified(trainer, rollout, mask):
    """Metrics of the specification over the masked tokens; arrays of any shape."""
    mask = np.asarray(mask, dtype=bool)
    trainer, rollout = np.asarray(trainer, dtype=np.float64)[mask], np.asarray(rollout, dtype=np.float64)[mask]
    with np.errstate(all="ignore"):
        d = trainer - rollout
        k3 = np.expm1(d) - d
        finite = np.isfinite(trainer) & np.isfinite(rollout)
        tails = {t: np.mean(np.abs(d) > np.log(t)) if finite.all() else np.nan for t in THRESHOLDS}
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
            "kl_k3": k3.mean(),
            "nonfinite_logp_fraction": np.mean(~finite),
            "kl_k3_overflow_fraction": np.mean(finite & np.isposinf(np.expm1(d))),
            "n_valid_tokens": float(mask.sum()),
        }
    return values | {f"ratio_outside_{t}": tail for t, tail in tails.items()}


def scales(trainer, rollout, mask):
    """What a mean may be off relative to: the mean absolute value of what is averaged."""
    mask = np.asarray(mask, dtype=bool)
    trainer, rollout = np.asarray(trainer, dtype=np.float64)[mask], np.asarray(rollout, dtype=np.float64)[mask]
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


def below(prefix, metrics):
    """The metrics below a prefix, without it."""
    return {name.removeprefix(prefix): value for name, value in metrics.items() if name.startswith(prefix)}
