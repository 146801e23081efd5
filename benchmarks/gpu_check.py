"""Check on one NVIDIA GPU, or several, what a CPU cannot show. Needs no network; under four minutes.

    python benchmarks/gpu_check.py [--json FILE] [--results benchmarks/results_gpu.md]

Every check prints one line of a table: its name, whether it holds, and what was measured. Without a GPU it says so and
exits 0; the functions take any device, so that the tests run them on the CPU as far as it goes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from tabulate import tabulate
from torch import Tensor, nn

from areal_callbacks.core.tracker import StatsTracker
from areal_callbacks.monitors.throughput.timer import make_timer
from areal_callbacks.session import MetricsSession

VOCABULARY, EXPERTS, TOP_K = 512, 8, 2


class Finding(NamedTuple):
    """One line of the table.

    Attributes:
        check: its name.
        holds: None where it was left out.
        measured: for people.
    """

    check: str
    holds: bool | None
    measured: str


class Router(nn.Module):
    """Chooses experts by its scores."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.num_experts, self.top_k = EXPERTS, TOP_K
        self.gate = nn.Linear(width, EXPERTS, bias=False)

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        scores = self.gate(hidden).float().softmax(-1)
        weights, chosen = scores.topk(TOP_K, -1)
        return scores, weights, chosen


class TinyTopKRouter(Router):
    """Named like one."""


class Layer(nn.Module):
    """All experts are computed, and the chosen ones weighted: shapes are static, as graphs need them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.router = nn.LayerNorm(width), TinyTopKRouter(width)
        self.experts = nn.Linear(width, EXPERTS * width)

    def forward(self, hidden: Tensor) -> Tensor:
        normed = self.norm(hidden)
        _, weights, chosen = self.router(normed)
        of_all = torch.zeros(*chosen.shape[:-1], EXPERTS, device=hidden.device).scatter(-1, chosen, weights)
        outputs = self.experts(normed).unflatten(-1, (EXPERTS, -1))
        return hidden + (of_all.to(outputs.dtype).unsqueeze(-1) * outputs).sum(-2)


class Model(nn.Module):
    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = nn.Embedding(VOCABULARY, width), nn.Linear(width, VOCABULARY)
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))

    def forward(self, input_ids: Tensor) -> Tensor:
        hidden = self.embedding(input_ids)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden)


class Training:
    """Steps of a model on one batch, observed by a session or not; ``wrapped`` makes what is called of the model."""

    def __init__(
        self,
        device: torch.device,
        folder: Path | None,
        *,
        layers: int = 4,
        width: int = 64,
        wrapped: Callable[[Any], Any] = lambda model: model,
    ) -> None:
        self.device, self.model = device, Model(layers, width).to(device)
        self.call = wrapped(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-4)
        self.ids = torch.randint(0, VOCABULARY, (4, 64), device=device)
        self.routers, self.session = layers, None if folder is None else open_session(folder)
        if self.session is not None:
            self.session.attach(self.call, self.optimizer, flops_estimator=lambda length: 1e6 * length)

    def step(self) -> None:
        with contextlib.nullcontext() if self.session is None else self.session.step():
            self.call(self.ids).float().logsumexp(-1).mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)

    def check_counts(self, name: str, steps: int) -> Finding:
        """Tokens and routed assignments of so many steps since the last export."""
        assert self.session is not None
        export = self.session.export(steps)
        tokens = export.metrics.get("train_perf/tokens")
        routed = 0 if export.expert_loads is None else sum(int(row.counts.sum()) for row in export.expert_loads)
        expected = steps * self.ids.numel(), steps * self.ids.numel() * TOP_K * self.routers
        return Finding(name, (tokens, routed) == expected, f"tokens {tokens}, routed {routed}, expected {expected}")


def open_session(folder: Path) -> MetricsSession:
    return MetricsSession(output_dir=folder, report=False)


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def check_seconds(device: torch.device, size: int = 4096, products: int = 200) -> Finding:
    """Seconds of device events against a synchronised wall clock, of a loop that only computes."""
    matrix, timer = torch.rand(size, size, device=device), make_timer(device)
    (matrix @ matrix).sum().item()
    start = time.perf_counter()
    timer.start()
    for _ in range(products):
        matrix @ matrix
    timer.stop()
    wait(device)
    wall, measured = time.perf_counter() - start, timer.take()
    return Finding("seconds", abs(measured / wall - 1) <= 0.02, f"{measured:.4f} s, wall clock {wall:.4f} s")


def check_overhead(device: torch.device, folder: Path, *, steps: int = 30, rounds: int = 9, **shape: int) -> Finding:
    """Synchronised wall time of interleaved rounds of steps, with and without a session."""
    plain, observed = Training(device, None, **shape), Training(device, folder, **shape)
    ratios = []
    for _ in range(rounds + 1):
        seconds = [time_steps(each, steps) for each in (plain, observed)]
        ratios.append(seconds[1] / seconds[0])
    ratio = statistics.median(ratios[1:])
    close(observed)
    return Finding(
        "step overhead", ratio <= 1.01, f"with / without {ratio:.4f}, a step {seconds[0] / steps * 1e3:.2f} ms"
    )


def time_steps(training: Training, steps: int) -> float:
    wait(training.device)
    start = time.perf_counter()
    for _ in range(steps):
        training.step()
    wait(training.device)
    return time.perf_counter() - start


def close(training: Training) -> None:
    assert training.session is not None
    training.session.close()


@contextlib.contextmanager
def no_waiting(device: torch.device) -> Iterator[None]:
    """An operation that waits for the device raises."""
    if device.type != "cuda":
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def check_no_waiting(device: torch.device, folder: Path) -> Finding:
    """The step path, with a stat, under ``set_sync_debug_mode("error")``; what ours raises is in the log, so count."""
    training = Training(device, folder)
    assert training.session is not None
    for _ in range(3):
        training.step()
    training.session.export(1)
    mask, values = torch.ones(64, dtype=torch.bool, device=device), torch.rand(64, device=device)
    training.session.tracker.stat_compact(mask, value=values)
    with no_waiting(device):
        for _ in range(40):
            training.step()
            training.session.tracker.stat_compact(mask, value=values)
    finding = training.check_counts("no wait on the step path", 40)
    close(training)
    return finding


def check_compiled(
    device: torch.device, folder: Path, *, whole: bool, mode: str | None = None, backend: str = "inductor"
) -> Finding:
    """Counts of compiled steps; of CUDA graphs also that counting was left out and said so, as zero."""

    def compiled(model: Model) -> Any:
        if whole:
            return torch.compile(model, mode=mode, backend=backend)
        for layer in model.layers:
            layer.compile(backend=backend)
        return model

    training = Training(device, folder, wrapped=compiled)
    for _ in range(4):
        training.step()
    finding = training.check_counts(f"compile {'whole' if whole else 'blocks'} {mode or ''}".strip(), 4)
    close(training)
    return finding


def check_side_stream(device: torch.device, folder: Path) -> Finding:
    """Steps on a stream that is not the default one, exported from the default one."""
    training = Training(device, folder)
    stream = torch.cuda.Stream(device) if device.type == "cuda" else None
    with contextlib.nullcontext() if stream is None else torch.cuda.stream(stream):
        for _ in range(20):
            training.step()
    if stream is not None:
        torch.cuda.current_stream(device).wait_stream(stream)
    finding = training.check_counts("side stream", 20)
    close(training)
    return finding


def check_memory(device: torch.device, folder: Path, **shape: int) -> Finding:
    """Peak bytes with a session and without, of the same steps."""
    if device.type != "cuda":
        return Finding("peak memory added", None, "only a GPU tells")
    peaks = []
    for each in (None, folder):
        training = Training(device, each, **shape)
        torch.cuda.reset_peak_memory_stats(device)
        time_steps(training, 5)
        peaks.append(torch.cuda.max_memory_allocated(device))
        if each is not None:
            close(training)
        del training
    added = peaks[1] - peaks[0]
    return Finding("peak memory added", added <= max(0.01 * peaks[0], 1 << 20), f"{added:,} bytes of {peaks[0]:,}")


def check_mfu(device: torch.device, folder: Path) -> Finding:
    """Between 0 and 1 where the peak of the device is known."""
    training = Training(device, folder)
    assert training.session is not None
    for _ in range(5):
        training.step()
    mfu = training.session.export(5).metrics.get("train_perf/mfu")
    close(training)
    return Finding("MFU", None if mfu is None else 0 < mfu < 1, "peak unknown" if mfu is None else f"{mfu:.2e}")


def _export_rank(rank: int, ranks: int, backend: str, store: str) -> None:
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=ranks)
    tracker = StatsTracker()
    for _ in range(2):
        mask = torch.ones(4, dtype=torch.bool, device=device)
        tracker.stat_compact(mask, value=torch.full((4,), float(rank), device=device))
        exported = tracker.export(reduce_group=dist.group.WORLD)
        assert exported["value/avg"] == (ranks - 1) / 2, exported
        assert (exported["value/min"], exported["value/max"]) == (0.0, ranks - 1.0), exported
    dist.destroy_process_group()


def check_export(ranks: int, backend: str) -> Finding:
    """A process for each GPU; average, minimum and maximum over all of them."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_export_rank, (ranks, backend, f"{folder}/store"), nprocs=ranks)
    return Finding(f"{backend} export, {ranks} ranks", True, "average, minimum, maximum exact")


def checks(device: torch.device, folder: Path) -> dict[str, Callable[[], Finding]]:
    """Name → check, in the order of the table."""
    real = {"layers": 8, "width": 1024}
    found: dict[str, Callable[[], Finding]] = {
        "seconds": lambda: check_seconds(device),
        "step overhead": lambda: check_overhead(device, folder / "overhead", **real),
        "no wait on the step path": lambda: check_no_waiting(device, folder / "waiting"),
        "compile whole": lambda: check_compiled(device, folder / "whole", whole=True),
        "compile blocks": lambda: check_compiled(device, folder / "blocks", whole=False),
        "CUDA graphs": lambda: check_compiled(device, folder / "graphs", whole=True, mode="reduce-overhead"),
        "side stream": lambda: check_side_stream(device, folder / "stream"),
        "peak memory added": lambda: check_memory(device, folder / "memory", **real),
        "MFU": lambda: check_mfu(device, folder / "mfu"),
        "nccl export": lambda: check_export(1, "nccl"),
    }
    if torch.cuda.device_count() > 1:
        found["nccl export, all GPUs"] = lambda: check_export(torch.cuda.device_count(), "nccl")
    return found


def run(name: str, check: Callable[[], Finding]) -> Finding:
    """A check that raises does not hold."""
    try:
        return check()
    except Exception as error:  # noqa: BLE001 - the others go on
        return Finding(name, False, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")


def as_table(findings: list[Finding]) -> str:
    words = {True: "holds", False: "**does not hold**", None: "left out"}
    rows = [(each.check, words[each.holds], each.measured) for each in findings]
    return tabulate(rows, ("check", "", "measured"), tablefmt="github", disable_numparse=True)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path)
    parser.add_argument("--results", type=Path)
    chosen = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("no NVIDIA GPU here: nothing was checked")
        return 0
    device, name = torch.device("cuda", 0), torch.cuda.get_device_name(0)
    with tempfile.TemporaryDirectory() as folder:
        findings = [run(check, function) for check, function in checks(device, Path(folder)).items()]
    return show(name, findings, chosen.json, chosen.results)


def show(name: str, findings: list[Finding], json_file: Path | None, page: Path | None) -> int:
    """Print what was found on the device of this name, write it where it is wanted, and return the exit status."""
    table = as_table(findings)
    print(f"{name}, torch {torch.__version__}\n\n{table}")
    if json_file is not None:
        json_file.write_text(json.dumps({"device": name, "findings": [each._asdict() for each in findings]}))
    if page is not None:
        page.write_text(f"# Measured on {name}\n\n`python benchmarks/gpu_check.py`\n\n{table}\n")
    return int(any(each.holds is False for each in findings))


if __name__ == "__main__":
    sys.exit(main())
