"""The source package of the Accelerate that is installed, which holds its tests: `fetch_accelerate.py FOLDER`."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tarfile
from pathlib import Path


def main() -> None:
    """Unpack into ``FOLDER/accelerate``, unless that version lies there already."""
    folder, version = Path(sys.argv[1]), importlib.metadata.version("accelerate")
    archive = folder / f"accelerate-{version}.tar.gz"
    if not archive.exists():
        options = ("--quiet", "--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--dest", str(folder))
        subprocess.run([sys.executable, "-m", "pip", "download", *options, f"accelerate=={version}"], check=True)
        with tarfile.open(archive) as content:
            content.extractall(folder, filter="data")
    link = folder / "accelerate"
    link.unlink(missing_ok=True)
    link.symlink_to(f"accelerate-{version}", target_is_directory=True)


if __name__ == "__main__":
    main()
