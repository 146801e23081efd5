"""``python -m areal_callbacks.run``."""

from areal_callbacks.run.script import main

main()
