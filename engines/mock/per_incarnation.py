"""State that dies with the engine process: made anew after a crash, when it is next asked for.

Separate so that no route has to know that its process may be another one by now.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from engines.mock.process import EngineProcess

T = TypeVar("T")


class PerIncarnation(Generic[T]):
    """A value of one incarnation.

    Args:
        build: makes the value for the process as it is now.
    """

    def __init__(self, process: EngineProcess, build: Callable[[EngineProcess], T]) -> None:
        self._process = process
        self._build = build
        self._incarnation: int | None = None
        self._value: T | None = None

    def __repr__(self) -> str:
        return f"<PerIncarnation #{self._incarnation} {self._value!r}>"

    def get(self) -> T:
        """Return the value of the present incarnation."""
        if self._value is None or self._incarnation != self._process.incarnation:
            self._incarnation = self._process.incarnation
            self._value = self._build(self._process)
        return self._value
