"""The three kinds of keys: of workers, of clients, of administrators.

Separate because nothing in here may ever be printed. Client keys are hashed as they are read, and only the
hashes stay.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any, Final

from pydantic import Field, field_validator, model_validator

from router.settings.section import FilePath, Key, Section, expand_path

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_PREFIX: Final = "sha256:"
_WORDS: Final = ("name", "tenant", "class")


def digest(key: str) -> str:
    """SHA-256 of a key, in hex. A plain hash is enough: keys are long random words, not passwords."""
    return hashlib.sha256(key.encode()).hexdigest()


class ClientKey(Section):
    """One key that clients may use; written as the key, as `sha256:<hex>`, or as a mapping with `key`."""

    sha256: str = Field(repr=False)
    """SHA-256 of the key, 64 hex digits."""
    name: str = ""
    """Who holds it, for logs."""
    tenant: str = ""
    """Whose traffic it is."""
    trusted: bool = False
    """May use control fields, and sees routing headers."""
    slo: str = Field(default="", alias="class")
    """Service class of its requests."""

    @model_validator(mode="before")
    @classmethod
    def _hash(cls, value: Any) -> Any:
        """The key itself is gone after this line."""
        if isinstance(value, str):
            value = {"key": value}
        if not isinstance(value, dict) or "key" not in value:
            return value
        key = value["key"]
        if not isinstance(key, str) or not key.strip():
            raise ValueError("a client key must be text, and not empty")
        rest = {name: item for name, item in value.items() if name != "key"}
        known = key.startswith(_PREFIX)
        return {"sha256": key.removeprefix(_PREFIX).lower() if known else digest(key), **rest}

    @field_validator("sha256")
    @classmethod
    def _is_digest(cls, value: str) -> str:
        if not _DIGEST.fullmatch(value):
            raise ValueError("sha256: must be followed by 64 hex digits")
        return value


class AuthSettings(Section):
    """Keys. None of them: whoever reaches the port may use it, and administration needs the admin port."""

    api_key: Key | None = None
    """Key sent to workers, in place of whatever the client sent."""
    client_api_keys: tuple[ClientKey, ...] = ()
    """Keys asked of clients; a list of keys, of `sha256:<hex>`, or of mappings {key, name, tenant, class,
    trusted}. In the environment: keys with commas between."""
    client_api_keys_file: FilePath | None = None
    """File with more client keys, one a line: `KEY [name=N] [tenant=T] [class=C] [trusted]`."""
    admin_api_key: Key | None = None
    """Key asked of administrators; with it, admin routes are also served on the data port."""

    @model_validator(mode="before")
    @classmethod
    def _gather_client_keys(cls, value: Any) -> Any:
        """Keys of the file join those written in place; both end as hashes."""
        if not isinstance(value, dict):
            return value
        keys = value.get("client_api_keys") or ()
        if isinstance(keys, str):
            keys = [key.strip() for key in keys.split(",") if key.strip()]
        file = value.get("client_api_keys_file")
        if file and isinstance(keys, list | tuple):
            keys = [*keys, *read_client_keys(expand_path(file))]
        return {**value, "client_api_keys": keys}

    @property
    def asks_clients(self) -> bool:
        """Whether a client needs a key."""
        return bool(self.client_api_keys)

    def client(self, key: str) -> ClientKey | None:
        """Who holds this key, None for a stranger. Compares hashes, so time tells nothing of the key."""
        wanted = digest(key)
        return next((known for known in self.client_api_keys if known.sha256 == wanted), None)


def read_client_keys(path: Path) -> tuple[ClientKey, ...]:
    """Client keys of a file, one a line; `#` begins a comment line.

    Raises:
        ValueError: the file cannot be read, holds no key, or a line is wrong (named by its number).
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"the file of client keys {path} cannot be read: {error}") from error
    keys = [
        _parse_line(line.split(), f"{path} line {number}")
        for number, line in enumerate(lines, start=1)
        if line.strip() and not line.lstrip().startswith("#")
    ]
    if not keys:
        raise ValueError(f"the file of client keys {path} holds no key, so every client would be refused")
    return tuple(keys)


def _parse_line(words: list[str], where: str) -> ClientKey:
    fields: dict[str, Any] = {"key": words[0]}
    for word in words[1:]:
        name, equals, value = word.partition("=")
        if word == "trusted":
            fields["trusted"] = True
        elif equals and name in _WORDS:
            fields[name] = value
        else:
            raise ValueError(f"{where}: a key may be followed by name=, tenant=, class= and trusted only")
    if words[0].startswith(_PREFIX) and not _DIGEST.fullmatch(words[0].removeprefix(_PREFIX).lower()):
        raise ValueError(f"{where}: sha256: must be followed by 64 hex digits")
    return ClientKey.model_validate(fields)
