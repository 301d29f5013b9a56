"""What the registry knows of a policy, and the check of its parameters.

Separate from the registry so that a policy file can describe itself without importing its siblings.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any

from router.core.binding import Mode
from router.core.policy import AnyPolicy
from router.core.worker import Role


class PolicyError(ValueError):
    """An unknown policy, an unknown parameter, or a value outside its bounds. The message names all three."""


class Shape(enum.Enum):
    """Which of the three protocols of `router.core.policy` a policy implements."""

    ONE = "one at a time"
    PAIR = "pair"
    BATCH = "batch"


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a parameter may be: a number within [low, high], whole or not, or one of some words."""

    low: float = 0.0
    high: float = 0.0
    whole: bool = False
    words: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.words:
            return " or ".join(self.words)
        kind = "a whole number" if self.whole else "a number"
        return f"{kind} from {self.low:,} to {self.high:,}"

    def allow(self, value: object) -> bool:
        if self.words:
            return value in self.words
        if isinstance(value, bool) or not isinstance(value, int if self.whole else (int, float)):
            return False
        # An integer may be larger than any double, and is compared without becoming one.
        return (isinstance(value, int) or math.isfinite(value)) and self.low <= value <= self.high


def whole(default: int, low: int, high: int) -> Any:
    """A dataclass field for a whole number from `low` to `high`."""
    return field(default=default, metadata={"bounds": Bounds(low, high, whole=True)})


def number(default: float, low: float, high: float) -> Any:
    """A dataclass field for a finite number from `low` to `high`."""
    return field(default=default, metadata={"bounds": Bounds(low, high)})


def word(default: str, *others: str) -> Any:
    """A dataclass field for one of some words."""
    return field(default=default, metadata={"bounds": Bounds(words=(default, *others))})


@dataclass(frozen=True, slots=True)
class NoParameters:
    """Of a policy that has nothing to set."""


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """One entry of the registry.

    Attributes:
        factory: makes the policy from its parameters and a seed.
        parameters: frozen dataclass whose fields were made by `whole`, `number` or `word`.
        roles: of the pools it makes sense for.
        cost_unit: unit of `Choice.cost`.
        page: the docstring of its file, which is its documentation.
        completed: adds to the parameters that were given those that follow from them.
    """

    name: str
    factory: Callable[[Any, int], AnyPolicy]
    roles: frozenset[Role]
    cost_unit: str
    page: str | None
    parameters: type[Any] = NoParameters
    shape: Shape = Shape.ONE
    completed: Callable[[Mapping[str, object]], Mapping[str, object]] = dict

    def fits(self, role: Role) -> bool:
        """Whether it may stand in a pool of a role; a prefill pool places one prompt at a time."""
        return role in self.roles and not (role is Role.PREFILL and self.shape is Shape.BATCH)

    def mode(self, role: Role, *, barrier: bool, slots: bool) -> Mode:
        """When a pool that says nothing of it chooses workers by this policy.

        Args:
            barrier: its workers step together, so a slot that is free is worth waiting for.
            slots: it is known how many each has.
        """
        if self.shape is Shape.BATCH:
            return Mode.LATE
        if role is Role.PREFILL or not barrier:
            return Mode.EARLY
        return Mode.LATE if role is Role.BOTH or slots else Mode.EARLY

    def check(self, params: Mapping[str, object]) -> Any:
        """The parameters, with defaults for those not given.

        Raises:
            PolicyError: a parameter that does not exist, or a value that is not allowed.
        """
        known = {f.name: f for f in fields(self.parameters)}
        for key, value in params.items():
            if key not in known:
                allowed = ", ".join(known) or "none"
                raise PolicyError(
                    f"policy {self.name!r} has no parameter {key!r} (given: {value!r}); it has: {allowed}"
                )
            if not bounds_of(known[key]).allow(value):
                raise PolicyError(
                    f"policy {self.name!r}: parameter {key!r} is {value!r}; allowed: {bounds_of(known[key])}"
                )
        return self.parameters(**self.completed(params))


def bounds_of(parameter: Field[Any]) -> Bounds:
    """The bounds that a parameter was declared with."""
    bounds: Bounds = parameter.metadata["bounds"]
    return bounds
