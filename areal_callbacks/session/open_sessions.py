"""The sessions that are open in this process: one of them exports the global trackers, and none shares a folder."""

from __future__ import annotations

import itertools
import os
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from areal_callbacks.config import MetricsConfig
from areal_callbacks.core.file_names import RUN_FOLDER
from areal_callbacks.safety.reporting import report_once


class Session(Protocol):
    """What is asked of a session here."""

    output_dir: Path


_OPEN: list[tuple[weakref.ref[Session], int]] = []
"""Each with the process that opened it."""


def add(session: Session) -> None:
    """A session was made."""
    _OPEN.append((weakref.ref(session), os.getpid()))


def remove(session: Session) -> None:
    """A session was closed."""
    _OPEN[:] = [(reference, process) for reference, process in _OPEN if reference() not in (session, None)]


def first() -> Session | None:
    """The oldest one, whose export takes what was recorded through ``areal_callbacks.stats_tracker``.

    Those of the process that forked this one are not open here.
    """
    return next(_sessions(), None)


def local_folder(path: str | os.PathLike[str]) -> Path | None:
    """A folder of this machine; None, with one message, for a URL of a store elsewhere (``s3://…``)."""
    scheme, is_url, rest = os.fspath(path).partition("://")
    if is_url and scheme != "file":
        report_once(f"folder:{scheme}", f"metrics are written to local files, not to {scheme}://: see output_dir")
        return None
    return Path(rest if is_url else path)


def choose_folder(config: MetricsConfig, host: str | os.PathLike[str] | None = None) -> Path:
    """Where a run writes: its ``output_dir``, its host's, its ``stats_logger``'s, or ``./areal_metrics/<time>``."""
    given = config.output_dir or host
    if given and (folder := local_folder(given)) is not None:
        return folder
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
    here = os.getpid()
    mine = (reference() for reference, process in _OPEN if process == here)
    return (session for session in mine if session is not None)
