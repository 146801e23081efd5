"""Coverage-guided fuzzing: `python tests/fuzz/run.py TARGET [libFuzzer options]`; `make fuzz` runs all targets."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["areal_callbacks", "yaml", "json"]):
    from targets import SEEDS, TARGETS


def main() -> None:
    """Fuzz one target, from its seeds, until an option such as -max_total_time ends it or an input fails."""
    name, *options = sys.argv[1:]
    corpus = Path(tempfile.mkdtemp(prefix=f"areal_corpus_{name}_"))
    for number, seed in enumerate(SEEDS[name]):
        (corpus / str(number)).write_bytes(seed)
    atheris.Setup([sys.argv[0], *options, str(corpus)], TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
