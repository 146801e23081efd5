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
from types import TracebackType
from typing import Any

import torch.distributed as dist

from areal_callbacks.config import MetricsConfig, StatsLoggerConfig
from areal_callbacks.config.files import expect_mapping, read_yaml
from areal_callbacks.config.sections import ConfigError
from areal_callbacks.core.types import COUNT_SUFFIX, Export, Run
from areal_callbacks.safety.reporting import logger
from areal_callbacks.session.outputs import make_publisher
from areal_callbacks.writers.scalars import as_plain_scalars

_SECTION = "stats_logger"


class StatsLogger:
    """Writes committed statistics to metrics.jsonl, the console, every configured tracker and a report; rank 0 alone.

    Files lie in ``<fileroot>/<experiment_name>/<trial_name>``. Trackers open with the first commit and are driven in
    the background: a slow or failing one never delays the loop. Works with and without a MetricsSession; a session
    whose configuration has a ``stats_logger`` section writes there by itself.

    Args:
        config: a :class:`StatsLoggerConfig`, a mapping of its keys, or the path of a YAML file, whose ``stats_logger``
            section is taken.
        run_config: the configuration of the experiment, shown in the trackers without its secrets.
        report: write report.html at the end.

    Raises:
        ValueError: an unknown key or a bad value, with the choices; a file without the section.
    """

    def __init__(
        self,
        config: StatsLoggerConfig | Mapping[str, Any] | str | os.PathLike[str],
        *,
        run_config: Mapping[str, Any] | None = None,
        report: bool = True,
    ) -> None:
        self.config = _parse(config)
        shown = {_SECTION: self.config.to_dict(), **(run_config or {})}
        name = f"{self.config.experiment_name}/{self.config.trial_name}"
        self._publisher = make_publisher(
            Run(self.config.folder, shown, name),
            MetricsConfig(stats_logger=self.config, report=report),
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
            data: name → number; keys that end in ``__count`` are dropped. An :class:`Export` brings its expert loads.
        """
        if dist.is_available() and dist.is_initialized() and dist.get_rank() != 0:
            return
        logger.info("epoch %d step %d, train step %d done", epoch + 1, step + 1, global_step + 1)
        items = [data] if isinstance(data, Mapping | Export) else list(data)
        for item in items:
            self._last_step = max(int(global_step), self._last_step + 1)
            self._publisher.publish(_make_export(self._last_step, item))

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
    values = item.metrics if isinstance(item, Export) else item
    metrics = as_plain_scalars({key: value for key, value in values.items() if not str(key).endswith(COUNT_SUFFIX)})
    if isinstance(item, Export):
        return Export(step, metrics, item.expert_loads, item.host, item.time or time.time())
    return Export(step, metrics, time=time.time())


def _parse(config: StatsLoggerConfig | Mapping[str, Any] | str | os.PathLike[str]) -> StatsLoggerConfig:
    if isinstance(config, StatsLoggerConfig):
        return config
    source: str = "argument"
    if isinstance(config, str | os.PathLike):
        source = os.fspath(config)
        config = _read_section(source)
    try:
        return StatsLoggerConfig.parse(expect_mapping(config, f"{source}: {_SECTION}"))
    except ConfigError as error:
        raise ValueError(f"{source}: {error.below(_SECTION)}") from None


def _read_section(path: str) -> Any:
    document = read_yaml(path)
    if _SECTION not in document:
        raise ValueError(f"{path}: this file has no {_SECTION} section")
    return document[_SECTION]
