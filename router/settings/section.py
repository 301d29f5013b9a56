"""What all sections share: frozen, closed, documented by attribute docstrings, and the value types of YAML.

Separate from the sections so that each of them is only a list of knobs.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Final, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationInfo,
    field_validator,
)

_UNITS: Final = {
    "": 1,
    "b": 1,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
}
_SIZE: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.IGNORECASE)


class Section(BaseModel):
    """A group of knobs. Unknown keys are refused; a setting never changes after the start."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
        use_attribute_docstrings=True,
        validate_by_name=True,
        validate_by_alias=True,
    )

    @field_validator("*", mode="before")
    @classmethod
    def _true_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Pydantic reads true as 1; `port: yes` is a mistake, not port 1."""
        wanted = cls.model_fields[info.field_name].annotation if info.field_name else None
        if isinstance(value, bool) and bool not in (wanted, *get_args(wanted)):
            raise ValueError("it must not be true or false")
        return value


def parse_bytes(value: Any) -> Any:
    """Bytes of `65536`, `"64 MiB"` or `"1.5GB"`; whatever is no text is left for the type to judge.

    Raises:
        ValueError: text that is neither a number nor a number with a unit.
    """
    if not isinstance(value, str):
        return value
    found = _SIZE.fullmatch(value)
    factor = _UNITS.get(found.group(2).lower()) if found else None
    if found is None or factor is None:
        raise ValueError('it must be a number of bytes, or one with a unit such as "64 MiB"')
    return int(float(found.group(1)) * factor)


def split_words(value: Any) -> Any:
    """A list written as one text, `a,b c`, as the environment and flags give it."""
    return re.split(r"[,\s]+", value.strip()) if isinstance(value, str) and value.strip() else value or ()


def expand_path(value: Any) -> Any:
    """`~` is the home directory in a file and in the environment, where no shell expands it."""
    return Path(value).expanduser() if isinstance(value, str) and value else value


def fit_for_a_header(value: SecretStr) -> SecretStr:
    """The key itself. Raises ValueError for one that cannot be sent as `Authorization: Bearer KEY`."""
    text = value.get_secret_value()
    if not text or not text.isascii() or not text.isprintable() or text.strip() != text:
        raise ValueError("a key must be printable ASCII without spaces around it, and not empty")
    return value


Key = Annotated[SecretStr, AfterValidator(fit_for_a_header)]
Port = Annotated[int, Field(ge=0, le=65535)]
Seconds = Annotated[float, Field(gt=0, le=86_400)]
Share = Annotated[float, Field(ge=0, le=1)]
Bytes = Annotated[int, BeforeValidator(parse_bytes), Field(ge=1024, le=2**40)]
Words = Annotated[tuple[str, ...], BeforeValidator(split_words)]
FilePath = Annotated[Path, BeforeValidator(expand_path)]
