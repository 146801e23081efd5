"""The sessions that are open in this process: one of them exports the global trackers, and none shares a folder."""

from __future__ import annotations

import itertools
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from areal_callbacks.config import MetricsConfig
from areal_callbacks.core.file_names import RUN_FOLDER


class Session(Protocol):
    """What is asked of a session here."""

    output_dir: Path


_OPEN: list[weakref.ref[Session]] = []


def add(session: Session) -> None:
    """A session was made."""
    _OPEN.append(weakref.ref(session))


def remove(session: Session) -> None:
    """A session was closed."""
    _OPEN[:] = [reference for reference in _OPEN if reference() not in (session, None)]


def first() -> Session | None:
    """The oldest one, whose export takes what was recorded through ``areal_callbacks.stats_tracker``."""
    return next(_sessions(), None)


def choose_folder(config: MetricsConfig) -> Path:
    """Where a run without an ``output_dir`` writes: its ``stats_logger``'s folder, or ``./areal_metrics/<time>``."""
    if config.stats_logger is not None:
        return config.stats_logger.folder
    first_choice = Path(RUN_FOLDER, time.strftime("%Y%m%d-%H%M%S"))
    return next(folder for folder in _free(first_choice, "-") if not folder.exists())


def choose_beside(files: Path) -> Path:
    """``areal_metrics`` beside a host's files; runs that are open at the same time do not share a folder."""
    return next(_free(files / RUN_FOLDER, "_"))


def _free(first_choice: Path, separator: str) -> Iterator[Path]:
    """Names that no open session has taken: its folder may not exist yet."""
    taken = {session.output_dir for session in _sessions()}
    names = itertools.chain(
        [first_choice.name], (f"{first_choice.name}{separator}{number}" for number in itertools.count(2))
    )
    return (folder for name in names if (folder := first_choice.with_name(name)) not in taken)


def _sessions() -> Iterator[Session]:
    return (session for session in (reference() for reference in _OPEN) if session is not None)
