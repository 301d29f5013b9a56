"""Where a worker listens.

Separate because connections are pooled by it: two URLs that mean the same place must be equal here.
"""

from __future__ import annotations

from urllib.parse import urlsplit

import msgspec

_DEFAULT_PORTS = {"http": 80, "https": 443}


class Origin(msgspec.Struct, frozen=True, cache_hash=True):
    """Scheme, host and port of a worker, and the path that all its routes share.

    Attributes:
        scheme: "http" or "https".
        host: name or address, lower-case; an IPv6 address without its brackets.
        base_path: without a trailing slash; "" when there is none.
    """

    scheme: str
    host: str
    port: int
    base_path: str = ""

    @classmethod
    def parse(cls, url: str) -> Origin:
        """Read `http://host:8000/base`. Raises ValueError with a sentence that names the fault."""
        fault = _fault_of(url)
        if fault is not None:
            raise ValueError(f"{url!r} is not the URL of a worker: {fault}")
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError as error:
            raise ValueError(f"{url!r} is not the URL of a worker: the port must be 1 to 65535") from error
        if port == 0:
            raise ValueError(f"{url!r} is not the URL of a worker: the port must be 1 to 65535")
        return cls(
            scheme=parts.scheme,
            host=parts.hostname or "",
            port=port or _DEFAULT_PORTS[parts.scheme],
            base_path=parts.path.rstrip("/"),
        )

    @property
    def authority(self) -> str:
        """`host:port`, as in a Host header; IPv6 in brackets, the port always."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.authority}{self.base_path}"

    def __str__(self) -> str:
        return self.url


def _fault_of(url: str) -> str | None:
    """The first thing wrong with `url` apart from its port, as the end of a sentence."""
    if not url.isascii() or any(char <= " " or char == "\x7f" for char in url):
        return "it must be printable ASCII without spaces"
    try:
        parts = urlsplit(url)
    except ValueError:
        return "an IPv6 address stands in brackets, like http://[::1]:8000"
    if parts.scheme not in _DEFAULT_PORTS:
        return "it must begin with http:// or https://"
    if not parts.hostname:
        return "the host is missing (an IPv6 address stands in brackets)"
    if parts.username is not None or parts.password is not None:
        return "credentials do not belong in it; give the worker's key by --api-key"
    if parts.query or parts.fragment:
        return "a query or fragment does not belong in it"
    return None
