"""Environments of the stacks: uv, a CPU build of torch, nothing that needs a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TORCH = "torch==2.13.0"
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
    "swift": ("ms-swift",),
    "axolotl": ("axolotl",),
    "oumi": ("oumi",),
    "setfit": ("setfit",),
    "litgpt": ("litgpt", "requests", "torchmetrics", "transformers"),
}
"""Environment → what is installed in it, in the newest releases that go together."""


def make_environment(folder: Path, packages: tuple[str, ...]) -> None:
    """Make an environment with the packages and this one in it, unless it is there."""
    if (folder / "made").exists():
        return
    uv = folder.with_name(f"{folder.name.rpartition('-')[0]}-uv")
    if not uv.exists():
        subprocess.run([sys.executable, "-m", "venv", uv], check=True)
        subprocess.run([uv / "bin" / "pip", "install", "--quiet", "uv"], check=True)
    alone = [uv / "bin" / "uv", "--no-config"]  # not in the versions of this package's demo
    subprocess.run([*alone, "venv", "--quiet", "--python", sys.executable, folder], check=True)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as overrides:
        overrides.write("\n".join([TORCH, *(f'{name}; sys_platform == "never"' for name in NEED_A_GPU)]))
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
