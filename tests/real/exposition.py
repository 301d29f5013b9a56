"""Single values out of an engine's metrics, also those that no router reads.

Separate from the router's own reader, which is not to judge itself.
"""

from __future__ import annotations

import re

_SAMPLE = re.compile(r"^([^{\s]+)(?:\{(.*)\})?\s+(\S+)$")
_LABEL = re.compile(r'(\w+)="([^"]*)"')


def value(exposition: bytes, name: str, **labels: str) -> float:
    """The sum of all samples of this name that have these labels; 0 when there is none yet."""
    found = 0.0
    for line in exposition.decode().splitlines():
        match = _SAMPLE.match(line)
        if match is None or match[1] != name:
            continue
        given = dict(_LABEL.findall(match[2] or ""))
        if all(given.get(key) == wanted for key, wanted in labels.items()):
            found += float(match[3])
    return found
