"""The folder that stands first on ``PYTHONPATH`` of every process below ``areal-callbacks run``."""
