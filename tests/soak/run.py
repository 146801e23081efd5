"""`make soak`: what only shows in long runs. ``python -m soak.run [KIND ...] [--scale 1.0] [--result FILE]``"""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from soak import cycles, new_keys, signals, steps

SOAKS: dict[str, tuple[Callable[[Path, int], dict[str, float]], int]] = {
    "signals": (signals.soak, 50),
    "steps": (steps.soak, 200_000),
    "cycles": (cycles.soak, 1_000),
    "new_keys": (new_keys.soak, 10_000),
}


def main() -> int:
    """1 if one of them fails, which is told; the others still run."""
    arguments = parse_arguments()
    lines = [f"python -m soak.run {' '.join(sys.argv[1:])}".rstrip(), describe()]
    for name in arguments.kinds or SOAKS:
        soak, size = SOAKS[name]
        with tempfile.TemporaryDirectory(prefix="areal_soak_") as folder:
            try:
                figures = soak(Path(folder), max(1, round(size * arguments.scale)))
                lines.append(f"{name}: " + ", ".join(f"{key} {value:.6g}" for key, value in figures.items()))
            except Exception as error:  # noqa: BLE001 - the next one has to run
                traceback.print_exc()
                lines.append(f"{name}: FAILED: {error!r}")
        print(lines[-1], flush=True)
    if arguments.result is not None:
        arguments.result.write_text("\n".join([*lines, ""]))
    return int(any("FAILED" in line for line in lines))


def describe() -> str:
    """When, and with what."""
    versions = (
        f"{name} {importlib.metadata.version(name)}" for name in ("torch", "transformers", "lightning", "accelerate")
    )
    return f"{time.strftime('%Y-%m-%d')}, Python {platform.python_version()}, {', '.join(versions)}"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"one of {', '.join(SOAKS)}; all by default")
    parser.add_argument("--scale", type=float, default=1.0, help="times the whole size")
    parser.add_argument("--result", type=Path, help="a file that is written anew")
    arguments = parser.parse_args()
    if unknown := set(arguments.kinds) - SOAKS.keys():
        parser.error(f"unknown {', '.join(sorted(unknown))}; one of {', '.join(SOAKS)}")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
