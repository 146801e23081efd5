"""The test suites of the hosts, and how one is run: plain, or with our callback in every trainer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
HUB = ROOT / ".peers/hub"
LIBRARIES = ROOT / ".peers/lib"


@dataclass(frozen=True)
class Suite:
    """The tests of one host.

    Attributes:
        names: of its checkout's folder, whichever there is.
        tests: files and folders in it.
        options: more for pytest.
        hub: whether they load models and data sets, which make_hub.py makes.
    """

    names: tuple[str, ...]
    tests: tuple[str, ...]
    options: tuple[str, ...] = ()
    hub: bool = False


SUITES = {
    "accelerate": Suite(
        ("accelerate",),
        tuple(
            f"tests/test_{name}.py"
            for name in (
                *("accelerator", "optimizer", "scheduler", "data_loader", "state_checkpointing", "grad_sync", "cpu"),
                *("kwargs_handlers", "hooks", "logging", "tracking", "metrics", "dataclasses", "utils", "memory_utils"),
            )
        ),
        ("-c", os.devnull, "--rootdir", "."),  # it has no settings, and lies below ours
    ),
    # What a callback may disturb most comes first. Tests of several processes hang on a small machine, also without us.
    "lightning": Suite(
        ("pytorch-lightning", "lightning"),
        (
            *(f"tests/tests_fabric/test_{name}.py" for name in ("fabric", "wrappers")),
            *(
                f"tests/tests_pytorch/strategies/test_{name}.py"
                for name in ("common", "custom_strategy", "single_device")
            ),
            *(
                f"tests/tests_pytorch/callbacks/test_{name}.py"
                for name in (
                    *("callbacks", "early_stopping", "lr_monitor", "timer", "weight_averaging", "lambda_function"),
                    *("callback_hook_outputs", "gradient_accumulation_scheduler", "throughput_monitor"),
                )
            ),
            *(f"tests/tests_pytorch/{name}" for name in ("loops", "checkpointing", "trainer/optimization")),
            *(f"tests/tests_pytorch/models/test_{name}.py" for name in ("hooks", "restore", "cpu", "torchscript")),
            *(f"tests/tests_fabric/strategies/test_{name}.py" for name in ("strategy", "single_device", "registry")),
        ),
        (
            *("-k", "not ddp and not spawn and not fork and not deepspeed and not multi_cpu and not legacy"),
            *("-o", "markers=cloud\nflaky"),
        ),
    ),
    # Models of images and some settings need what cannot be made without the hub, or a GPU.
    "trl": Suite(
        ("trl",),
        (
            *(f"tests/test_{name}_trainer.py" for name in ("dpo", "grpo", "kto", "reward", "rloo", "sft")),
            *("tests/test_activation_offloading.py", "tests/test_callbacks.py", "tests/experimental"),
        ),
        ("-m", "not slow", "-k", "not vlm and not vision and not image and not vllm and not liger and not distributed"),
        hub=True,
    ),
    # Those that one rank without a GPU and without Transformer Engine can run.
    "megatron": Suite(
        ("Megatron-LM",),
        tuple(
            f"tests/unit_tests/{name}"
            for name in (
                *("test_training.py", "test_argument_utils.py", "test_num_microbatches_calculator.py", "models"),
                *("test_optimizer_param_scheduler.py", "test_parallel_state.py", "optimizer", "tensor_parallel"),
                *("pipeline_parallel", "distributed/test_param_and_grad_buffer.py", "test_checkpointing.py"),
                *("transformer/moe", "transformer/test_transformer_block.py", "transformer/test_mlp.py"),
            )
        ),
        ("-o", "addopts=", "-p", "megatron_on_cpu", "--continue-on-collection-errors"),
    ),
}

Outcomes = dict[str, str]


def prepare(suite: Suite, checkout: Path) -> None:
    """Make what its tests take from the hub, where nothing can be downloaded; it stays for further runs."""
    if suite.hub and not HUB.exists():
        subprocess.run([sys.executable, str(HERE / "make_hub.py"), str(checkout), str(HUB)], check=True)


def run_suite(suite: Suite, checkout: Path, tests: Sequence[str], *, attached: bool, seconds: float) -> Outcomes:
    """Test → "passed", "failed", "error" or "skipped"; those that were not reached in time are absent."""
    with tempfile.TemporaryDirectory(prefix="areal_peers_") as folder:
        record = Path(folder, "outcomes.xml")
        command = [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "--timeout=300"),
            *(
                f"--basetemp={folder}/tests",
                f"--junitxml={record}",
                "-o",
                "junit_family=xunit1",
                *suite.options,
                *tests,
            ),
        ]
        with subprocess.Popen(command, cwd=checkout, env=_make_environment(suite, folder, attached)) as process:
            _wait(process, seconds)
        return read_outcomes(record) if record.exists() else {}


def _wait(process: subprocess.Popen[bytes], seconds: float) -> None:
    """An interrupted pytest still writes down what it has run."""
    for signal_number in (signal.SIGINT, signal.SIGINT, signal.SIGKILL):
        with suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
            return
        print(f"stopped after {seconds:.0f} s", file=sys.stderr)
        process.send_signal(signal_number)
        seconds = 60


def read_outcomes(record: Path) -> Outcomes:
    """The outcomes in a JUnit file, each under the name that pytest takes to run it again."""
    outcomes = {}
    for case in ElementTree.parse(record).iter("testcase"):
        kinds = {child.tag for child in case} & {"failure", "error", "skipped"}
        file, classes = case.get("file", ""), case.get("classname", "").split(".")
        module = file.removesuffix(".py").replace("/", ".").split(".")
        name = "::".join([file, *classes[len(module) :], case.get("name", "")])
        if not file:  # the test that was interrupted
            continue
        outcomes[name] = {"failure": "failed"}.get(kind := min(kinds, default="passed"), kind)
    return outcomes


def compare(plain: Outcomes, attached: Outcomes) -> dict[str, tuple[str, str]]:
    """Tests that ran in both and ended differently, with both outcomes."""
    both = plain.keys() & attached.keys()
    return {name: (plain[name], attached[name]) for name in sorted(both) if plain[name] != attached[name]}


def _make_environment(suite: Suite, folder: str, attached: bool) -> dict[str, str]:
    """Our files go to a folder of their own: hosts' tests count what lies in theirs."""
    paths: Iterable[str] = filter(
        None, [str(HERE / "site"), str(ROOT), str(LIBRARIES), os.environ.get("PYTHONPATH", "")]
    )
    return {
        **os.environ,
        **({"HF_HOME": str(HUB)} if suite.hub else {}),
        "PYTHONPATH": os.pathsep.join(paths),
        "AREAL_PEERS": "attached" if attached else "plain",
        "AREAL_CALLBACKS": json.dumps({"output_dir": f"{folder}/metrics", "report": False}),
    }
