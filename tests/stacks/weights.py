"""Whether two runs saved the same weights."""

from __future__ import annotations

import hashlib
from pathlib import Path


def hash_weights(folder: Path) -> str:
    """A hash of the weights that lie in a folder itself, after training; empty if there are none."""
    files = sorted(
        file for kind in ("safetensors", "pth") for deep in ("", "*/") for file in folder.glob(f"{deep}*.{kind}")
    )
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest() if files else ""
