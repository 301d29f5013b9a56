"""Who a client is, by the key it shows."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass

from router.core.errors import Unauthorized
from router.settings.auth import AuthSettings

_BEARER = "bearer "


@dataclass(frozen=True, slots=True)
class Client:
    """What a key grants.

    Attributes:
        trusted: may use control fields and sees routing headers.
        slo: service class of its requests.
    """

    name: str = ""
    tenant: str = ""
    slo: str = ""
    trusted: bool = False


ANYBODY = Client()


class Keys:
    """Checks client and administrator keys. Keys are compared as hashes or in constant time."""

    def __init__(self, settings: AuthSettings) -> None:
        self._settings = settings
        self._asks_clients = settings.asks_clients
        admin = settings.admin_api_key
        self._admin = admin.get_secret_value().encode() if admin else None

    @property
    def has_admin(self) -> bool:
        return self._admin is not None

    def client(self, headers: Mapping[bytes, bytes]) -> Client:
        """The client of a request. Raises Unauthorized when keys are asked and this one is not known."""
        if not self._asks_clients:
            return ANYBODY
        key = shown_key(headers)
        if key is None:
            raise Unauthorized("This router asks for a key: send `Authorization: Bearer KEY`.")
        known = self._settings.client(key)
        if known is None:
            raise Unauthorized("The key is not known to this router.")
        return Client(known.name, known.tenant, known.slo, known.trusted)

    def admin(self, headers: Mapping[bytes, bytes]) -> bool:
        """Whether the request shows the administrator's key."""
        key = shown_key(headers)
        return self._admin is not None and key is not None and hmac.compare_digest(self._admin, key.encode())


def shown_key(headers: Mapping[bytes, bytes]) -> str | None:
    """The key of `Authorization: Bearer` or, as Anthropic's clients send it, of `x-api-key`."""
    authorization = _text(headers.get(b"authorization", b""))
    if authorization[: len(_BEARER)].lower() == _BEARER:
        return authorization[len(_BEARER) :].strip()
    key = headers.get(b"x-api-key")
    return _text(key) if key is not None else None


def _text(value: bytes) -> str:
    """A header as the configuration would spell it: clients send UTF-8, and some the old one-byte code."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")
