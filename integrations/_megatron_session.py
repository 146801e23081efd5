"""A session for models, optimizers and data iterators of megatron.core."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from torch import nn
from torch.optim import Optimizer

from areal_callbacks.config import MetricsConfig, MetricsOptions
from areal_callbacks.integrations._megatron_flops import find_megatron_flops
from areal_callbacks.monitors.throughput.megatron_lengths import MegatronLengths, forward_names
from areal_callbacks.safety.door import attempt, guarded_entry
from areal_callbacks.safety.patches import Patches
from areal_callbacks.safety.reporting import report_once
from areal_callbacks.session import MetricsSession
from areal_callbacks.topology import Topology, default_world

try:
    from megatron.core.process_groups_config import ProcessGroupCollection
    from megatron.core.rerun_state_machine import RerunDataIterator
    from megatron.core.utils import get_model_config
except ImportError as error:
    raise ImportError("this integration needs megatron-core: pip install 'areal-callbacks[megatron]'") from error

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from areal_callbacks.flops.registry import Estimator
    from areal_callbacks.writers.base import MetricWriter

_GROUPS = ("tp", "pp", "cp")


class MegatronSession(MetricsSession):
    """A session that knows Megatron's optimizers and data iterators; see :func:`attach`."""

    def __init__(self, config: MetricsConfig, **kwargs: Any) -> None:
        super().__init__(config, **kwargs)
        self._patches = Patches("megatron")
        self._optimizers: list[Any] = []
        self._excludes_rerun_iterators = False

    @guarded_entry
    def observe_megatron_optimizer(self, optimizer: Any) -> None:
        """Time a MegatronOptimizer's steps and count those that it skips; a second call for it does nothing."""
        if not any(optimizer is known for known in self._optimizers):
            self._optimizers.append(optimizer)
            self.expect_optimizer(may_skip=True)
            self._patches.wrap(optimizer, "step", self._around_optimizer_step)

    def _around_optimizer_step(self, *args: Any, **kwargs: Any) -> Generator[None, Any]:
        self.optimizer_begin()
        result = yield  # (update successful, gradient norm, zeros in the gradients)
        if (result[0] if isinstance(result, tuple) else result) is False:
            self.optimizer_skipped()
        else:
            self.optimizer_end()

    def unmeasured(self, data_iterator: Any) -> Any:
        """The same iterator, or list of iterators, whose waiting for the next batch is no training time."""
        problem = "waiting for the next batch counts as training time"
        return attempt("megatron:iterator", problem, self._exclude, data_iterator) or data_iterator

    def _exclude(self, data_iterator: Any) -> Any:
        if isinstance(data_iterator, list | tuple):
            return type(data_iterator)(self._exclude(part) for part in data_iterator)
        if data_iterator is None or isinstance(data_iterator, _Unmeasured):
            return data_iterator
        if not isinstance(data_iterator, RerunDataIterator):
            return _Unmeasured(data_iterator, self)
        self.exclude_rerun_iterators()  # Megatron wants objects of this very class
        return data_iterator

    @guarded_entry
    def exclude_rerun_iterators(self) -> None:
        """Waiting for the next batch of any iterator that Megatron can rewind is no training time."""
        if not self._excludes_rerun_iterators:
            self._excludes_rerun_iterators = True
            self._patches.wrap(RerunDataIterator, "__next__", self._around_next)

    def _around_next(self, iterator: Any) -> Generator[None]:
        with self.waiting():
            yield

    @guarded_entry
    def end(self) -> None:
        """A training step ends; batches are fetched inside of the steps, so that no other time waits for them."""
        super().end()
        self.forget_wait()

    @guarded_entry
    def close(self) -> None:
        self._patches.undo()
        self._optimizers.clear()
        super().close()


class _Unmeasured:
    """Stands for a data iterator; forwards everything."""

    def __init__(self, iterator: Iterator[Any], session: MetricsSession) -> None:
        self._iterator = iterator
        self._session = session

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        with self._session.waiting():
            return next(self._iterator)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._iterator, name)


def attach(
    model: nn.Module | Sequence[nn.Module],
    optimizer: Any = None,
    *,
    config: MetricsConfig | Mapping[str, Any] | str | None = None,
    name: str = "",
    pg_collection: Any = None,
    topology: Topology | None = None,
    writer_rank: int | None = None,
    flops_estimator: Estimator | None = None,
    guests: Sequence[MetricWriter] = (),
    **options: Unpack[MetricsOptions],
) -> MegatronSession:
    """Observe a model whose parallel groups exist. Local; the exports that follow are collective over the world.

    Args:
        model: the model chunks as the schedule calls them, inside Megatron's wrappers; several with virtual stages.
        optimizer: a MegatronOptimizer, or a torch optimizer.
        config: a :class:`MetricsConfig`, a mapping of its keys or the path of a YAML file.
        name: of the run, for people.
        pg_collection: a ProcessGroupCollection with ``tp``, ``pp`` and ``cp``; by default the global groups.
        topology: who contributes what, if the groups do not tell it.
        writer_rank: the rank that writes files; by default the last one, where Megatron has its writers.
        flops_estimator: training FLOPs of one sequence, instead of the estimate from the TransformerConfig.
        guests: writers into trackers that the loop has opened, on the writer rank.
        **options: configuration keys.

    Raises:
        ValueError: an unknown key or a bad value, with the choices.
    """
    chunks = [model] if isinstance(model, nn.Module) else list(model)
    groups = pg_collection or ProcessGroupCollection.use_mpu_process_groups(list(_GROUPS))
    settings = MetricsConfig.make(config, **options)
    if settings.token_count_fn is None:
        lengths = MegatronLengths(_size(groups, "cp"), forward_names(chunks[0]))
        settings = MetricsConfig.make(settings, token_count_fn=lengths)
    _warn(get_model_config(chunks[0]))
    if flops_estimator is None and settings.flops.enabled:
        flops_estimator = find_megatron_flops(chunks)
    session = MegatronSession(settings, name=name, guests=guests)
    session.attach(
        chunks,
        optimizer if isinstance(optimizer, Optimizer) else None,
        topology or make_topology(chunks, groups, writer_rank=writer_rank),
        inputs_of=chunks[:1],
        flops_estimator=flops_estimator,
    )
    if optimizer is not None and not isinstance(optimizer, Optimizer):
        session.observe_megatron_optimizer(optimizer)
    return session


def make_topology(
    chunks: Sequence[nn.Module],
    groups: Any,
    *,
    world: ProcessGroup | None = None,
    writer_rank: int | None = None,
) -> Topology:
    """Who contributes what; tensor, context, pipeline and expert parallelism never multiply anything.

    A sequence counts on the first pipeline stage's first tensor- and context-parallel rank. Context-parallel ranks
    route different tokens, and so do tensor-parallel ranks under sequence parallelism; without it one of them counts.
    What is recorded in ``stats_tracker`` counts on the first tensor-parallel rank of every stage.

    Args:
        chunks: this rank's model chunks.
        groups: a ProcessGroupCollection.
        world: every training rank; by default the default group.
        writer_rank: in the world; by default the last.
    """
    world = world or default_world()
    tensor, context = _rank(groups, "tp"), _rank(groups, "cp")
    first_stage = _attribute(chunks[0], "pre_process", _rank(groups, "pp") == 0)
    last = 0 if world is None else world.size() - 1
    return Topology(
        world=world,
        tokens=bool(first_stage) and tensor == 0 and context == 0,
        routes=tensor == 0 or bool(get_model_config(chunks[0]).sequence_parallel),
        stats=tensor == 0,
        writer_rank=last if writer_rank is None else writer_rank,
    )


def _rank(groups: Any, name: str) -> int:
    group = getattr(groups, name, None)
    return 0 if group is None else int(group.rank())


def _size(groups: Any, name: str) -> int:
    group = getattr(groups, name, None)
    return 1 if group is None else int(group.size())


def _attribute(chunk: nn.Module, name: str, default: Any = None) -> Any:
    """Of the outermost module that has it: wrappers do not hand attributes on."""
    return next((getattr(module, name) for module in chunk.modules() if hasattr(module, name)), default)


def _warn(config: Any) -> None:
    """What this configuration does to the numbers."""
    if getattr(config, "moe_pad_expert_input_to_capacity", False):
        report_once(
            "megatron:capacity",
            "moe_pad_expert_input_to_capacity fills every expert to its capacity: loads will look perfectly balanced",
        )
    if getattr(config, "overlap_moe_expert_parallel_comm", False):
        report_once(
            "megatron:overlap",
            "overlap_moe_expert_parallel_comm runs layers without calling the model: tokens and routed loads are lost",
        )
