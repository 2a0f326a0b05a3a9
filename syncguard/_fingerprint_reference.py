"""The specification of fingerprints, in scalars; every fast form is tested against it.

The mixer is `rrmxmx` (Pelle Evensen, "On the mixing functions in Fast Splittable Pseudorandom
Number Generators, MurmurHash3 and David Stafford's improved variants", 2019; the same shape serves
short inputs in XXH3). Its first step copies each bit to three places, so that a change of the top
bits reaches the bits that multiplications and shifts carry furthest. The finalizer of SplitMix64
lacks that step: two changes of the top bit cancel in it with a probability near 2^-48.5 (89 equal
differences among 2^55 pairs), while no pair was found for this mixer.
"""

from typing import Final

__all__ = ["KEY", "MULTIPLIER", "ROTATIONS", "SHIFT", "key", "mix", "row_print"]

MULTIPLIER: Final = 0x9FB21C651E98DF25
ROTATIONS: Final = (24, 49)
SHIFT: Final = 28

KEY: Final = 0x9E3779B97F4A7C15
"""Positions times this odd number, 2^64 over the golden ratio, give the keys' arguments."""

_BITS: Final = 64
_MASK: Final = (1 << _BITS) - 1


def mix(value: int) -> int:
    """Scatter the bits of a number of 64 bits; a bijection.

    Args:
        value: In 0 to 2^64 - 1.

    Returns:
        A number in the same range.
    """
    first, second = ((value >> n | value << (_BITS - n)) & _MASK for n in ROTATIONS)
    value = (value ^ first ^ second) * MULTIPLIER & _MASK
    value = (value ^ value >> SHIFT) * MULTIPLIER & _MASK
    return value ^ value >> SHIFT


def key(position: int) -> int:
    """Return the key of a position, counted in granules from the start of the logical row."""
    return mix((position + 1) * KEY & _MASK)


def row_print(octets: bytes, granule: int, first: int = 0) -> int:
    """Fingerprint a row, or the shard of it that begins at its byte `first`.

    Args:
        octets: The bytes, a whole number of granules.
        granule: Bytes of a granule, read as a little-endian number.
        first: A multiple of `granule`.

    Returns:
        The sum modulo 2^64 of `mix(granule + key(position))`.
    """
    total = 0
    for start in range(0, len(octets), granule):
        number = int.from_bytes(octets[start : start + granule], "little")
        total += mix((number + key((first + start) // granule)) & _MASK)
    return total & _MASK
