"""How far a calibration has come. Separate because all of its parts count here, and one shows it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Tally:
    """The state of a calibration for those who watch it.

    Attributes:
        planned, done: measurements; one is a prompt, a batch or a hand-over.
        doing: what each worker or pair is at.
    """

    planned: int = 0
    done: int = 0
    doing: dict[str, str] = field(default_factory=dict)

    def plan(self, measurements: int) -> None:
        """So many more will come."""
        self.planned += measurements

    def step(self, measurements: int = 1) -> None:
        """So many more are done, or will not be needed."""
        self.done += measurements

    @property
    def beside(self) -> str:
        """What is under way."""
        return ", ".join(f"{name}: {what}" for name, what in sorted(self.doing.items()))

    @property
    def line(self) -> str:
        """The state in one line."""
        return f"{self.done}/{self.planned} measured; {self.beside}"
