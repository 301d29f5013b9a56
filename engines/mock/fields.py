"""Typed reading of a JSON body: what is absent, null, or of the wrong type is said with its path.

Separate because every route needs it and none should repeat it. Types are what vLLM's validation accepts;
the sentences are ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeGuard

import msgspec

from engines.mock.errors import Refusal, bad_body

Json = dict[str, object]

_FLAGS: dict[bool | float | str, bool] = {
    **dict.fromkeys((True, "1", "on", "t", "true", "y", "yes"), True),
    **dict.fromkeys((False, "0", "off", "f", "false", "n", "no"), False),
}
"""What pydantic takes for a boolean, in lower case; the numbers 1 and 0 are equal to theirs."""


def decode_body(body: bytes) -> Json:
    """Parse a request body that must be a JSON object.

    Raises:
        Refusal: 400 for anything else.
    """
    try:
        parsed = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise bad_body(f"1 validation error: the body is not valid JSON ({error})") from error
    if not isinstance(parsed, dict):
        raise bad_body("1 validation error: the body must be a JSON object")
    return parsed


class Fields:
    """The fields of one object, read by type. A null is the same as an absent field."""

    def __init__(self, values: Mapping[str, object], path: str = "body") -> None:
        self._values = values
        self._path = path

    def __repr__(self) -> str:
        return f"<Fields {self._path} {sorted(self._values)}>"

    @property
    def values(self) -> Mapping[str, object]:
        """All fields as they were sent."""
        return self._values

    def has(self, name: str) -> bool:
        return self._values.get(name) is not None

    def raw(self, name: str) -> object:
        """Return the value as it was sent, None when absent."""
        return self._values.get(name)

    def required(self, name: str) -> object:
        """Return a value that must be there.

        Raises:
            Refusal: 400 with the path of the missing field.
        """
        value = self._values.get(name)
        if value is None:
            where = f"{self._path}.{name}"
            raise bad_body(f"1 validation error: {where} is required and was not sent", where)
        return value

    def integer(self, name: str) -> int | None:
        """Return a whole number; digits in a string count, as the engines' validation lets them."""
        value = self._values.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            raise self.wrong(name, "an integer")
        try:
            number = float(value)
            whole = int(value) if isinstance(value, (int, str)) else int(number)
        except (ValueError, OverflowError):
            raise self.wrong(name, "an integer") from None
        if number != whole:
            raise self.wrong(name, "an integer")
        return whole

    def number(self, name: str) -> float | None:
        value = self._values.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.wrong(name, "a number")
        return float(value)

    def flag(self, name: str, *, default: bool = False) -> bool:
        value = self._values.get(name)
        if value is None:
            return default
        word = value.lower() if isinstance(value, str) else value
        if isinstance(word, (bool, int, float, str)) and word in _FLAGS:
            return _FLAGS[word]
        raise self.wrong(name, "true or false")

    def text(self, name: str) -> str | None:
        value = self._values.get(name)
        if value is None:
            return None
        if not isinstance(value, str):
            raise self.wrong(name, "a string")
        return value

    def object(self, name: str) -> Fields | None:
        value = self._values.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.wrong(name, "an object")
        return Fields(value, f"{self._path}.{name}")

    def objects(self, name: str) -> list[Json]:
        """Return a list of objects, empty when absent."""
        value = self._values.get(name)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self.wrong(name, "a list of objects")
        return value

    def texts(self, name: str) -> list[str]:
        """Return a string or a list of strings as a list, empty when absent."""
        value = self._values.get(name)
        if value is None:
            return []
        if isinstance(value, str):
            return [value]
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.wrong(name, "a string or a list of strings")
        return value

    def integers(self, name: str) -> list[int]:
        """Return a list of integers, empty when absent."""
        value = self._values.get(name)
        if value is None:
            return []
        if not is_token_ids(value):
            raise self.wrong(name, "a list of integers")
        return list(value)

    def wrong(self, name: str, allowed: str) -> Refusal:
        """Return the refusal of a value that is not what is allowed."""
        where = f"{self._path}.{name}"
        kind = type(self._values.get(name)).__name__
        return bad_body(f"1 validation error: {where} must be {allowed}, not {kind}", where)


def is_token_ids(value: object) -> TypeGuard[list[int]]:
    """Whether a value is a list of integers (booleans are not)."""
    return isinstance(value, list) and all(type(item) is int for item in value)
