"""Lightning's own advice is no concern of these tests."""

from __future__ import annotations

import logging
import warnings

import pytest

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)


@pytest.fixture(autouse=True)
def _quiet_advice() -> None:
    """On workers, loggers and old interfaces."""
    warnings.filterwarnings("ignore", module=r"(lightning|pytorch_lightning|torch)\b.*")
    warnings.filterwarnings("ignore", message=r".*(does not have many workers|tensorboardX|isinstance\(treespec).*")
