"""Where the value of a flag belongs, among the pools that the file and the environment have.

Separate from the sources because flags speak of "the pool" and of "the two sides of the pair", and here it is
decided which pools are meant.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from router.core.worker import Role
from router.policies import POLICIES
from router.settings.pools import DEFAULT_POOL
from router.settings.refusals import Loc, SettingsError

_ANY_POOL: Final = ("pools", "*")
_IN_A_PAIR: Final[Mapping[str, tuple[Role, ...]]] = {
    "model": (Role.PREFILL, Role.DECODE),
    "policy": (Role.PREFILL, Role.DECODE),
    "slots": (Role.DECODE,),
    "dp_size": (Role.PREFILL, Role.DECODE),
    "policy_params": (Role.PREFILL,),
}
"""What a flag for the one pool means when there is a pair in its place."""


@dataclass(frozen=True, slots=True)
class Given:
    """One setting given by a flag.

    Attributes:
        flag: as it is typed, for refusals.
        key: the dotted key that it sets; `pools.*.slots` means the one pool there is.
        value: what was given.
        roles: the sides of the pair that it speaks of; the pools are made where there are none.
    """

    flag: str
    key: str
    value: Any = field(repr=False)
    roles: tuple[Role, ...] = ()


@dataclass(frozen=True, slots=True)
class Placed:
    """One value and the location that it goes to."""

    flag: str
    loc: Loc
    value: Any = field(repr=False)


def place(flags: Sequence[Given], below: Mapping[str, Any]) -> list[Placed]:
    """The flags with their locations, in the order they came in.

    Args:
        below: what the file and the environment say.

    Raises:
        SettingsError: a flag speaks of one pool, and there are several, or of a pair, and there are two.
    """
    pools = below.get("pools")
    roles = {name: _role(pool) for name, pool in pools.items()} if isinstance(pools, dict) else {}
    sides = [_sides(given, roles) for given in flags]
    for names in sides:
        roles.update({name: role.value for role, name in names.items()})
    return [
        placed
        for given, names in zip(flags, sides, strict=True)
        for placed in (_on_sides(given, names) if given.roles else _on_one(given, roles))
    ]


def _role(pool: Any) -> str:
    return str(pool.get("role", Role.BOTH.value)) if isinstance(pool, dict) else Role.BOTH.value


def _sides(given: Given, roles: Mapping[str, str]) -> dict[Role, str]:
    """The pool of each side that a flag speaks of. Where there is none, one is made, named after its role."""
    sides: dict[Role, str] = {}
    for role in given.roles:
        names = [name for name, its in roles.items() if its == role.value]
        if len(names) > 1:
            raise SettingsError([_several(given, f"one {role.value} pool", names)])
        sides[role] = names[0] if names else role.value
    return sides


def _on_sides(given: Given, sides: Mapping[Role, str]) -> Iterator[Placed]:
    """The value on each side, and the role of each, which a new pool does not have yet."""
    rest = given.key.split(".")[2:]
    for role, name in sides.items():
        yield Placed(given.flag, ("pools", name, "role"), role.value)
        if rest != ["role"]:
            yield Placed(given.flag, ("pools", name, *rest), given.value)


def _on_one(given: Given, roles: Mapping[str, str]) -> Iterator[Placed]:
    loc = tuple(given.key.split("."))
    if loc[:2] != _ANY_POOL:
        yield Placed(given.flag, loc, given.value)
    elif len(roles) <= 1:
        yield Placed(given.flag, ("pools", next(iter(roles), DEFAULT_POOL), *loc[2:]), given.value)
    else:
        for name in _in_a_pair(given, roles):
            yield Placed(given.flag, ("pools", name, *loc[2:]), given.value)


def _in_a_pair(given: Given, roles: Mapping[str, str]) -> list[str]:
    """The pools of a pair that stands in place of the one pool."""
    names = {role: name for name, role in roles.items()}
    if len(roles) != 2 or set(names) != {Role.PREFILL.value, Role.DECODE.value}:
        raise SettingsError([_several(given, "one pool", list(roles))])
    what = given.key.split(".")[2]
    if what not in _IN_A_PAIR:
        raise SettingsError(
            [
                f"{given.flag} is for workers that serve whole requests, but there is a pair of pools "
                f"({', '.join(roles)}); name their workers with --prefill and --decode, or set {given.key}"
            ]
        )
    return [names[role.value] for role in _IN_A_PAIR[what] if _goes_there(what, given.value, role)]


def _goes_there(what: str, value: Any, role: Role) -> bool:
    """Whether one side of a pair can have it: a policy that is for one side leaves the other its own."""
    spec = POLICIES.get(value) if what == "policy" and isinstance(value, str) else None
    return spec is None or spec.fits(role)


def _several(given: Given, what: str, names: Sequence[str]) -> str:
    return f"{given.flag} speaks of {what}, but there are several ({', '.join(names)}); set {given.key}"
