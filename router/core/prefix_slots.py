"""Bits that stand for workers in the masks of the prefix index.

Separate because a bit outlives its worker: whoever is gone is masked out at once, and the bit goes to
somebody else only after everything that carries it was swept.
"""

from __future__ import annotations

from router.core.errors import InternalError


class Slots:
    """Who has which bit.

    Attributes:
        live: mask of all bits whose owners are not gone.
    """

    __slots__ = ("_decoded", "_free", "_names", "live")

    def __init__(self) -> None:
        self.live = 0
        self._names: dict[int, str] = {}
        self._free: list[int] = []
        self._decoded: dict[tuple[int, int], list[str]] = {}  # names by (which byte of a mask, its value)

    def take(self, name: str) -> int:
        """A bit that nobody else has; the lowest that was never used if none was given back."""
        bit = self._free.pop() if self._free else 1 << len(self._names)
        self._names[bit] = name
        self.live |= bit
        self._decoded.clear()
        return bit

    def retire(self, bit: int) -> None:
        """Its owner is gone. Raises InternalError if that was said before."""
        if not bit & self.live:
            raise InternalError(f"{self!r}: slot {bit.bit_length() - 1} was retired twice")
        self.live ^= bit
        self._decoded.clear()

    def free(self, bit: int) -> None:
        """Nothing carries a retired bit any more. Raises InternalError for one that is live or free."""
        if bit & self.live or bit in self._free:
            raise InternalError(f"{self!r}: slot {bit.bit_length() - 1} was not waiting to be freed")
        self._free.append(bit)

    def names(self, mask: int) -> list[str]:
        """Owners of the bits of a mask, lowest bit first.

        Eight at a time, from a table that is filled as it is used: a pool of 256 is named in 32 steps.
        """
        names: list[str] = []
        for place in enumerate(mask.to_bytes((mask.bit_length() + 7) // 8, "little")):
            if place[1]:
                eight = self._decoded.get(place)
                names += self._decode(place) if eight is None else eight
        return names

    def _decode(self, place: tuple[int, int]) -> list[str]:
        index, value = place
        bits = (1 << (8 * index + n) for n in range(8) if value >> n & 1)
        names = self._decoded[place] = [self._names[bit] for bit in bits]
        return names

    def __repr__(self) -> str:
        live = self.live.bit_count()
        return f"<Slots [{live} live | {len(self._names) - live - len(self._free)} to be swept]>"
