"""Environments of the stacks: uv, a CPU build of torch, nothing that needs a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TORCH = ("torch==2.13.0",)
TORCH_OF = {"oumi": ("torch==2.10.0", "torchvision==0.25.0")}
"""Environment → the builds of torch that it needs: torchvision goes with builds for CUDA alone."""
NEED_A_GPU = (
    *("vllm", "deepspeed", "flash-attn", "xformers", "unsloth", "autoawq", "liger-kernel", "mamba-ssm"),
    *("causal-conv1d", "fla-core", "torchao", "torchvision"),  # whose operators are not those of a CPU build of torch
)
ENVIRONMENTS: dict[str, tuple[str, ...]] = {
    "hf": (
        *("transformers", "trl", "accelerate", "datasets", "sentence-transformers"),
        *("lightning", "jsonargparse[signatures]"),
    ),
    "llamafactory": ("llamafactory",),
    "swift": ("ms-swift", "msgspec"),
    "axolotl": ("axolotl>=0.19",),
    "oumi": ("oumi",),
    "setfit": ("setfit",),
    "litgpt": ("litgpt", "requests", "torchmetrics", "transformers"),
    "torchtune": ("torchtune", "torchao==0.15.0", "transformers"),  # with the parts of torchao that it imports
    "torchtitan": ("torchtitan", "triton", "transformers"),
    "olmo-core": ("ai2-olmo-core", "transformers"),
}
"""Environment → what is installed in it, in the newest releases that go together."""


def make_environment(prefix: str, name: str) -> Path:
    """Make an environment with its packages and this one in it, unless it is there.

    Returns:
        Its folder: the prefix, a dash and the name.
    """
    folder = Path(f"{prefix}-{name}").absolute()
    if not (folder / "made").exists():
        _install(folder, Path(f"{prefix}-uv").absolute(), ENVIRONMENTS[name], TORCH_OF.get(name, TORCH))
    return folder


def _install(folder: Path, uv: Path, packages: tuple[str, ...], torch: tuple[str, ...]) -> None:
    if not uv.exists():
        subprocess.run([sys.executable, "-m", "venv", uv], check=True)
        subprocess.run([uv / "bin" / "pip", "install", "--quiet", "uv"], check=True)
    alone = [uv / "bin" / "uv", "--no-config"]  # not in the versions of this package's demo
    subprocess.run([*alone, "venv", "--quiet", "--python", sys.executable, folder], check=True)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as overrides:
        given = {name.partition("==")[0] for name in (*packages, *torch)}
        left_out = [f'{name}; sys_platform == "never"' for name in NEED_A_GPU if name not in given]
        overrides.write("\n".join([*torch, *left_out]))
        overrides.flush()
        line = [*alone, "pip", "install", "--quiet", "--python", folder / "bin" / "python"]
        more = ["--override", overrides.name, *_find_links()]
        subprocess.run([*line, *more, *packages, "--editable", str(ROOT)], check=True)
    for library in folder.glob("lib/python*/site-packages/torchaudio/lib/*.so"):
        library.unlink()  # linked to CUDA; torchaudio is imported without it
    (folder / "made").touch()


def version_of(environment: Path, package: str) -> str:
    code = f"import importlib.metadata; print(importlib.metadata.version({package!r}))"
    return subprocess.check_output([environment / "bin" / "python", "-c", code], text=True).strip()


def _find_links() -> list[str]:
    """Where pip is told to look for builds of torch: uv does not read pip's settings."""
    return [word for folder in os.environ.get("PIP_FIND_LINKS", "").split() for word in ("--find-links", folder)]
