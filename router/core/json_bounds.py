"""How much work a piece of JSON may be, judged before it is decoded.

Separate because every reader of strangers' JSON in the core needs it: 64 MB of `{},` are ten million objects,
1.5 GB of memory and half a minute in which nothing else moves. A count of single bytes costs a thousandth of
that.
"""

from __future__ import annotations

import msgspec

MAX_VALUES = 200_000
"""Values that are decoded into objects: below a quarter of a second and some 50 MB."""

MAX_TOKEN_IDS = 1 << 22
"""Token ids, which are small: four times the longest context of any model that is served today."""

MAX_NAMES = 200_000
"""Fields of an object that is taken apart to be edited."""


def too_many_values(data: bytes | msgspec.Raw, bound: int = MAX_VALUES) -> bool:
    """Whether `data` may hold more than `bound` values. Punctuation in texts counts too: a text of several MB
    may be judged to be more than it is, and is then treated like what it might have been."""
    if len(data) <= bound:
        return False
    raw = bytes(data)
    return raw.count(b",") + raw.count(b"[") + raw.count(b"{") > bound


def too_many_names(data: bytes) -> bool:
    """Whether `data` may be an object of more than MAX_NAMES fields. Quotes inside texts are escaped, and do
    not count."""
    if len(data) <= MAX_NAMES:
        return False
    return data.count(b'"') - data.count(b'\\"') > 2 * MAX_NAMES
