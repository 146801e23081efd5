"""What the processes of a command tell about themselves: one small file each, in a folder of the command's own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

VARIABLE = "AREAL_CALLBACKS_MARKS"
_TRAINED = "trained"
_SAID = "said"


def mark_training() -> None:
    """This process has begun a training that is measured; nothing where no command asked for marks."""
    folder = os.environ.get(VARIABLE)
    if folder:
        with suppress(OSError):  # another machine has no such folder
            Path(folder, str(os.getpid())).write_text(_TRAINED, encoding="utf-8")


class Marks:
    """The folder of one command.

    Args:
        folder: exists.

    Attributes:
        folder: as given.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def missing(self) -> str | None:
        """Why nothing was measured, in one line; None if something was, or if a process has said why."""
        marks = {path.name: path.read_text(encoding="utf-8") for path in self.folder.iterdir()}
        if _SAID in marks or _TRAINED in marks.values():
            return None
        return _describe(len(marks))


@contextmanager
def make_marks() -> Iterator[Marks]:
    """A folder that is gone afterwards."""
    with TemporaryDirectory(prefix="areal_callbacks_", ignore_cleanup_errors=True) as folder:
        yield Marks(Path(folder))


def _describe(processes: int) -> str:
    if processes == 0:
        return (
            "nothing was measured: no Python process of this command read the start-up hook, which python -I, -E, -S "
            "and a PYTHONPATH that the command sets itself pass by"
        )
    count = f"any of the {processes} Python processes" if processes > 1 else "the Python process"
    return (
        f"nothing was measured: no trainer that is observed has trained in {count} of this command; "
        "docs/your_stack.md lists what is observed, docs/fsdp.md the call for loops of your own"
    )
