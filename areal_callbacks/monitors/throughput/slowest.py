"""Which rank is the slowest, by one number whose maximum over ranks tells it.

The lowest bits of a positive float64 weigh less than any clock resolves: they hold the rank. Positive floats are
ordered like their bits, so that the largest number is that of the rank with the most seconds.
"""

from __future__ import annotations

import struct

SLOWEST = "slowest"

_RANK = (1 << 20) - 1
"""A million ranks; seconds keep 32 bits of their mantissa."""


def encode_rank(seconds: float, rank: int) -> float:
    """``seconds`` with the rank in its lowest 20 bits.

    Args:
        seconds: at least 0.
        rank: modulo 2**20.
    """
    (bits,) = struct.unpack("<q", struct.pack("<d", seconds))
    (code,) = struct.unpack("<d", struct.pack("<q", bits & ~_RANK | rank & _RANK))
    return float(code)


def decode_rank(code: float) -> int:
    """The rank that :func:`encode_rank` was given."""
    (bits,) = struct.unpack("<q", struct.pack("<d", code))
    return int(bits & _RANK)
