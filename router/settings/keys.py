"""The settings as a list of keys: for refusals, for flags and for the reference.

Separate because three readers want the same walk over the sections, and none of them should do its own.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, cast, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

_KINDS: Final[dict[Any, str]] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    SecretStr: "text",
    Path: "a path",
}
_UNITS: Final = {"s": "s", "bytes": "bytes", "tokens": "tokens"}


@dataclass(frozen=True, slots=True)
class Key:
    """One knob.

    Attributes:
        path: dotted, with `*` for any name of a pool and `[*]` for any place in a list.
        field: what pydantic knows of it.
    """

    path: str
    field: FieldInfo

    @property
    def unit(self) -> str:
        """The unit, which is the last word of the name; "" for plain numbers and words."""
        if self.path.endswith("_per_s"):
            return "a second"
        return _UNITS.get(self.path.rpartition("_")[2], "")

    @property
    def choices(self) -> tuple[str, ...]:
        """The allowed words, when there are only so many."""
        if isinstance(self.field.json_schema_extra, dict) and "choices" in self.field.json_schema_extra:
            return tuple(str(word) for word in cast(list[str], self.field.json_schema_extra["choices"]))
        for part in _alternatives(self.field.annotation):
            if get_origin(part) is Literal:
                return tuple(str(word) for word in get_args(part))
            if isinstance(part, type) and issubclass(part, enum.Enum):
                return tuple(str(member.value) for member in part)
        return ()

    @property
    def bounds(self) -> str:
        """ "between 1 and 60", "above 0 and at most 60", or "" when any value will do."""
        words = {Ge: "at least", Gt: "above", Le: "at most", Lt: "below"}
        found = {type(mark): getattr(mark, type(mark).__name__.lower()) for mark in self._marks()}
        if Ge in found and Le in found:
            return f"between {number(found[Ge], self.unit)} and {number(found[Le], self.unit)}"
        return " and ".join(
            f"{words[kind]} {number(found[kind], self.unit)}" for kind in (Ge, Gt, Le, Lt) if kind in found
        )

    @property
    def kind(self) -> str:
        """What the value is, in words: "a whole number", "one of text, json", "a list of words"."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        for part in _alternatives(self.field.annotation):
            bare = get_args(part)[0] if get_origin(part) is Annotated else part
            if bare in _KINDS:
                return _KINDS[bare]
            if get_origin(bare) is tuple:
                return "a list"
        return "a mapping"

    @property
    def allowed(self) -> str:
        """What may be set: kind, bounds, unit, null."""
        glue = " " if self.bounds.startswith("between") or not self.bounds else ", "
        unit = f" {self.unit}" if self.unit and self.bounds and self.unit != "bytes" else ""
        return f"{self.kind}{glue}{self.bounds}{unit}".strip() + (", or null" if self.nullable else "")

    @property
    def meaning(self) -> str:
        """What it does, as one paragraph."""
        return " ".join((self.field.description or "").split())

    @property
    def default(self) -> str:
        """The default as it would be written in YAML; "" for null, an empty list, and where there is none."""
        value = self.field.get_default(call_default_factory=True, validated_data={})
        if value is None or value is PydanticUndefined or value in ((), {}, ""):
            return ""
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple):
            return ", ".join(str(item) for item in value)
        if isinstance(value, enum.Enum):
            return str(value.value)
        return number(value, self.unit) if isinstance(value, int | float) else str(value)

    @property
    def nullable(self) -> bool:
        """Whether null is allowed, and means what the meaning says of None."""
        return NoneType in get_args(self.field.annotation)

    def _marks(self) -> Iterator[Ge | Gt | Le | Lt]:
        """Bounds, wherever they hang: at the field, or at a part of `… | None`."""
        marks: list[Any] = list(self.field.metadata)
        for part in _alternatives(self.field.annotation):
            if get_origin(part) is Annotated:
                marks.extend(part.__metadata__)
        for mark in marks:
            yield from (m for m in getattr(mark, "metadata", [mark]) if isinstance(m, Ge | Gt | Le | Lt))


def number(value: Any, unit: str = "") -> str:
    """A number as people write it: `0.2`, `30000`, `100,000`, and `64 MiB` of bytes."""
    for size, name in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if unit == "bytes" and value >= size and value % size == 0:
            return f"{value // size} {name}"
    return f"{value:,.10g}" if value >= 100_000 else f"{value:.10g}"


def all_keys(model: type[BaseModel], prefix: str = "") -> Iterator[Key]:
    """Every knob below `model`, in the order of the sections."""
    for name, field in model.model_fields.items():
        path = f"{prefix}{field.alias or name}"
        inner = _section_of(field.annotation)
        if inner is None or inner[1] == "[*]":
            yield Key(path, field)
        if inner is not None:
            yield from all_keys(inner[0], f"{path}{inner[1]}.")


def find_key(model: type[BaseModel], loc: Sequence[int | str]) -> Key | None:
    """The knob at a location, None when the location is a section or unknown."""
    where = _descend(model, loc[:-1])
    if where is None or not loc:
        return None
    section, prefix = where
    for name, field in section.model_fields.items():
        if loc[-1] in (name, field.alias):
            return Key(f"{prefix}{field.alias or name}", field)
    return None


def section_at(model: type[BaseModel], loc: Sequence[int | str]) -> type[BaseModel] | None:
    """The section at a location, None when there is none."""
    where = _descend(model, loc)
    return where[0] if where else None


def path_of(model: type[BaseModel], loc: Sequence[int | str]) -> str:
    """The location with names of pools and places in lists left open; the last part may be unknown."""
    where = _descend(model, loc[:-1])
    return f"{where[1]}{loc[-1]}" if where and loc else ""


def names_of(section: type[BaseModel]) -> list[str]:
    """The keys that a section has, as they are written."""
    return [field.alias or name for name, field in section.model_fields.items()]


def _descend(model: type[BaseModel], loc: Sequence[int | str]) -> tuple[type[BaseModel], str] | None:
    prefix, rest = "", list(loc)
    while rest:
        part = rest.pop(0)
        field = model.model_fields.get(part) if isinstance(part, str) else None
        inner = _section_of(field.annotation) if field else None
        if inner is None:
            return None
        model, mark = inner
        prefix += f"{part}{mark}."
        if mark and not rest:
            return None
        if mark:
            rest.pop(0)
    return model, prefix


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    """The parts of `A | B`, without None."""
    parts = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    return tuple(part for part in parts if part is not NoneType)


def _section_of(annotation: Any) -> tuple[type[BaseModel], str] | None:
    """The section inside an annotation, with `.*` for a mapping of names and `[*]` for a list."""
    marks: dict[Any, str] = {dict: ".*", tuple: "[*]"}
    mark = marks.get(get_origin(annotation), "")
    inner = {".*": get_args(annotation)[-1:], "[*]": get_args(annotation)[:1]}.get(mark, (annotation,))
    if inner and isinstance(inner[0], type) and issubclass(inner[0], BaseModel):
        return inner[0], mark
    return None
