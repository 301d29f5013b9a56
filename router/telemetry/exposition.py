"""The Prometheus text format, version 0.0.4: label sets, numbers, families read at scrape time.

Separate from the series so that the one place which must escape is small and tested against the reader of
prometheus-client. The client's own writer is not used for our series: it takes about 12 µs a sample, and
with 200 workers a scrape would stop every stream for a tenth of a second. Label sets are rendered once, when
a series is born.

Format: https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_LABEL_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
_HELP_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n"})


def render_labels(names: Sequence[str], values: Sequence[str]) -> str:
    """`a="x",b="y"`, without braces; values may be any text."""
    return ",".join(f'{name}="{_clean(value)}"' for name, value in zip(names, values, strict=True))


def render_number(value: float) -> str:
    """The shortest text that reads back as the same number."""
    if isinstance(value, int):
        return str(value)
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)


def header(name: str, kind: str, description: str) -> str:
    """The HELP and TYPE lines of a family."""
    return f"# HELP {name} {description.translate(_HELP_ESCAPES)}\n# TYPE {name} {kind}\n"


def braced(labels: str) -> str:
    return f"{{{labels}}}" if labels else ""


@lru_cache(maxsize=4096)  # names of workers and models come back with every sample of every scrape
def _clean(value: str) -> str:
    # A lone surrogate cannot be encoded as UTF-8, and one bad label would cost the whole scrape.
    return value.encode("utf-8", "replace").decode("utf-8").translate(_LABEL_ESCAPES)


class SampleFamily:
    """One name with samples that are read at scrape time, and gone after it.

    A second sample with the same labels replaces the first: Prometheus refuses a scrape with duplicates.

    Args:
        kind: "gauge", or "counter" for a number that somebody else counts.
    """

    __slots__ = ("_samples", "description", "kind", "labels", "name")

    def __init__(self, name: str, description: str, labels: Sequence[str] = (), kind: str = "gauge") -> None:
        self.name = name
        self.description = description
        self.labels = tuple(labels)
        self.kind = kind
        self._samples: dict[tuple[str, ...], float] = {}

    def set(self, value: float | None, *labels: str) -> None:
        """Record one sample; None records nothing, because absent is not 0."""
        if value is not None:
            self._samples[labels] = value

    def render(self) -> Iterator[str]:
        yield header(self.name, self.kind, self.description)
        for values, value in self._samples.items():
            yield f"{self.name}{braced(render_labels(self.labels, values))} {render_number(value)}\n"

    def __repr__(self) -> str:
        return f"<SampleFamily {self.name} [{len(self._samples)} samples]>"
