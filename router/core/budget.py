"""Bounded accounts shared by all pools: requests in flight, retries in flight, bytes held."""

from __future__ import annotations

from router.core.errors import InternalError


class Budget:
    """A count that is taken and given back, and never leaves [0, limit]."""

    __slots__ = ("limit", "name", "used")

    def __init__(self, name: str, limit: int) -> None:
        self.name = name
        self.limit = limit
        self.used = 0

    def take(self, amount: int = 1) -> bool:
        """Takes all of it or nothing; False when there is not enough left."""
        if self.used + amount > self.limit:
            return False
        self.used += amount
        return True

    def give(self, amount: int = 1) -> None:
        """Gives back what was taken. Raises InternalError when it was not."""
        if amount > self.used:
            raise InternalError(f"{self.name} would fall below zero: {self.used} - {amount}")
        self.used -= amount

    def __repr__(self) -> str:
        return f"<Budget {self.name} [{self.used} of {self.limit}]>"


class RetryBudget:
    """Retries in flight: at most a share of the requests in flight, but never less than a floor.

    It keeps a sick fleet from being hit twice for everything.
    """

    __slots__ = ("_in_flight", "floor", "share", "used")

    def __init__(self, in_flight: Budget, *, share: float = 0.2, floor: int = 10) -> None:
        self._in_flight = in_flight
        self.share = share
        self.floor = floor
        self.used = 0

    @property
    def limit(self) -> int:
        return max(self.floor, int(self.share * self._in_flight.used))

    def take(self) -> bool:
        if self.used >= self.limit:
            return False
        self.used += 1
        return True

    def give(self) -> None:
        if self.used == 0:
            raise InternalError("retries in flight would fall below zero")
        self.used -= 1

    def __repr__(self) -> str:
        return f"<RetryBudget [{self.used} of {self.limit}]>"
