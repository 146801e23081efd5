"""What processes that a test starts need to find the tests' own modules."""

from __future__ import annotations

import os
from pathlib import Path

TESTS = Path(__file__).parents[1]


def search_path() -> str:
    """``PYTHONPATH`` of a child: the folder of the tests, before what this process was given."""
    return os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))
