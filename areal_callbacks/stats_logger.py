"""Sends finished metrics to trackers, for loops without a logger of their own (AReaL: ``areal.utils.stats_logger``).

logger = StatsLogger("config.yaml")                      # its stats_logger section
for global_step, batch in enumerate(loader):
    ...
    stats = stats_tracker.export_all(reduce_group=group)
    stats.update(merge_worker_stats(rollout_exports))
    logger.commit(epoch, step, global_step, stats)       # rank 0 writes
logger.close()
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any

import torch.distributed as dist

from areal_callbacks.config import MetricsConfig, ReportConfig, StatsLoggerConfig
from areal_callbacks.config.experiment import read_experiment
from areal_callbacks.core.flat_loads import split_expert_loads
from areal_callbacks.core.types import COUNT_SUFFIX, Export, Run
from areal_callbacks.safety.reporting import logger
from areal_callbacks.session.outputs import make_publisher
from areal_callbacks.writers.scalars import as_plain_scalars


class StatsLogger:
    """Writes committed statistics to metrics.jsonl, the console, every configured tracker and a report; rank 0 alone.

    Files lie in ``<fileroot>/<experiment_name>/<trial_name>``. Trackers open with the first commit and are driven in
    the background: a slow or failing one never delays the loop. Works with and without a MetricsSession; a session
    whose configuration has a ``stats_logger`` section writes there by itself.

    Args:
        config: a :class:`StatsLoggerConfig`, a mapping of its keys, or the path of a YAML file, whose ``stats_logger``
            section is taken; or AReaL's experiment configuration, or another dataclass or mapping that holds such a
            section.
        ft_spec: AReaL's ``FinetuneSpec``: how many epochs and steps there are, for the log line.
        run_config: the configuration of the experiment, shown in the trackers without its secrets.
        report: write report.html at the end.

    Raises:
        ValueError: an unknown key or a bad value, with the choices; a file without the section.
    """

    def __init__(
        self,
        config: StatsLoggerConfig | Mapping[str, Any] | str | os.PathLike[str] | Any,
        ft_spec: Any = None,
        *,
        run_config: Mapping[str, Any] | None = None,
        report: bool = True,
    ) -> None:
        self.config, settings = read_experiment(config)
        self.ft_spec = ft_spec
        name = f"{self.config.experiment_name}/{self.config.trial_name}"
        self._publisher = make_publisher(
            Run(self.config.folder, {**settings, **(run_config or {})}, name),
            MetricsConfig(stats_logger=self.config, report=ReportConfig(report)),
            print_every_export=True,
        )
        self._last_step = -1

    def commit(
        self,
        epoch: int,
        step: int,
        global_step: int,
        data: Mapping[str, Any] | Export | Sequence[Mapping[str, Any] | Export],
    ) -> None:
        """Log one set of statistics, or several as consecutive steps.

        Log steps only rise, since trackers drop or overwrite anything else: a commit is logged at ``global_step``, or
        after the last logged step where that is not lower.

        Args:
            epoch: zero-based, for the log line.
            step: zero-based within the epoch, for the log line.
            global_step: zero-based over the run.
            data: name → number; keys that end in ``__count`` are dropped. An :class:`Export` brings its expert loads;
                in a mapping they may be AReaL's flat keys, see
                :func:`~areal_callbacks.core.flat_loads.split_expert_loads`.
        """
        if dist.is_available() and dist.is_initialized() and dist.get_rank() != 0:
            return
        logger.info(
            "epoch %s step %s, train step %s done",
            self._count(epoch, "total_train_epochs"),
            self._count(step, "steps_per_epoch"),
            self._count(global_step, "total_train_steps"),
        )
        items = [data] if isinstance(data, Mapping | Export) else list(data)
        for item in items:
            self._last_step = max(int(global_step), self._last_step + 1)
            self._publisher.publish(_make_export(self._last_step, item))

    def _count(self, number: int, total: str) -> str:
        of = getattr(self.ft_spec, total, None)
        return f"{number + 1}" if of is None else f"{number + 1}/{of}"

    def state_dict(self) -> dict[str, Any]:
        """The last logged step, JSON-serialisable, for a checkpoint."""
        return {"last_commit_step": self._last_step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue after the last logged step of an earlier run."""
        self._last_step = int(state["last_commit_step"])

    def close(self) -> None:
        """Flush and end everything that was opened; waits for slow trackers, at most a minute. Idempotent."""
        self._publisher.close()

    def __enter__(self) -> StatsLogger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _make_export(step: int, item: Mapping[str, Any] | Export) -> Export:
    export = item if isinstance(item, Export) else Export(step, dict(item))
    values, loads, series = split_expert_loads(export.metrics)
    metrics = as_plain_scalars({key: value for key, value in values.items() if not str(key).endswith(COUNT_SUFFIX)})
    loads = export.expert_loads or loads
    return replace(
        export, step=step, metrics=metrics, expert_loads=loads, time=export.time or time.time(), expert_series=series
    )
