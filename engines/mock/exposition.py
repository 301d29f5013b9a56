"""Prometheus text: families of samples, with the heads of their lines made once.

Separate from what is exposed because a scrape every 250 ms must cost little: only values are formatted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from prometheus_client.utils import floatToGoString

from engines.mock.account import Histogram

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

Labels = Mapping[str, str]


class Family(Protocol):
    """Something that prints its lines."""

    def lines(self) -> Iterator[str]:
        """Yield lines without their ends."""


def labelled(name: str, labels: Labels) -> str:
    """Return a sample's name with its labels in alphabetical order, as the Python client prints them."""
    if not labels:
        return name
    pairs = ",".join(f'{key}="{_escaped(labels[key])}"' for key in sorted(labels))
    return f"{name}{{{pairs}}}"


def number(value: float) -> str:
    """Return a value as the Python client prints it: `0.0`, `1.8e+09`."""
    return str(floatToGoString(value))  # type: ignore[no-untyped-call] # of the client library


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _header(name: str, text: str, kind: str) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]


@dataclass(frozen=True, slots=True)
class Series:
    """One labelled value of a gauge or counter."""

    labels: Labels
    read: Callable[[], float]


class Gauge:
    """A gauge family."""

    def __init__(self, name: str, text: str, series: Iterable[Series]) -> None:
        self._header = _header(name, text, "gauge")
        self._heads = [(labelled(name, one.labels) + " ", one.read) for one in series]

    def lines(self) -> Iterator[str]:
        """Yield header and samples."""
        yield from self._header
        for head, read in self._heads:
            yield head + number(read())


class Counter:
    """A counter family and the `_created` gauge that the Python client prints after it."""

    def __init__(self, name: str, text: str, series: Sequence[Series], created: float) -> None:
        self._total = Gauge(f"{name}_total", text, series)
        self._header = _header(f"{name}_total", text, "counter")
        stamps = [Series(one.labels, lambda: created) for one in series]
        self._created = list(Gauge(f"{name}_created", text, stamps).lines())

    def lines(self) -> Iterator[str]:
        """Yield header, samples and creation dates."""
        yield from self._header
        samples = self._total.lines()
        next(samples)
        next(samples)
        yield from samples
        yield from self._created


class HistogramFamily:
    """A histogram of one label set: cumulative buckets, count, sum, creation date."""

    def __init__(self, name: str, text: str, labels: Labels, histogram: Histogram, created: float) -> None:
        self._header = _header(name, text, "histogram")
        self._histogram = histogram
        bounds = [number(bound) for bound in histogram.bounds] + ["+Inf"]
        self._buckets = [labelled(f"{name}_bucket", {**labels, "le": bound}) + " " for bound in bounds]
        self._count = labelled(f"{name}_count", labels) + " "
        self._sum = labelled(f"{name}_sum", labels) + " "
        stamp = [Series(labels, lambda: created)]
        self._created = list(Gauge(f"{name}_created", text, stamp).lines())

    def lines(self) -> Iterator[str]:
        """Yield header, samples and creation date."""
        yield from self._header
        yield from self.samples()
        yield from self._created

    def samples(self) -> Iterator[str]:
        """Yield the samples alone."""
        total = 0
        for head, count in zip(self._buckets, self._histogram.counts, strict=True):
            total += count
            yield f"{head}{total}.0"
        yield f"{self._count}{total}.0"
        yield self._sum + number(self._histogram.sum)


class Joined:
    """One family that several ranks have: its header once, and the samples of all of them.

    Samples that are the same for all of them are printed once.

    Args:
        families: the same family of each rank.
    """

    def __init__(self, families: Sequence[Family]) -> None:
        self._families = families

    def lines(self) -> Iterator[str]:
        """Yield header and samples; of a counter or histogram, then the creation dates of all ranks."""
        ranks = [_sections(family) for family in self._families]
        for sections in zip(*ranks, strict=True):
            yield from sections[0][0]
            yield from dict.fromkeys(sample for _, samples in sections for sample in samples)


def _sections(family: Family) -> list[tuple[list[str], list[str]]]:
    """The headers of a family and the samples below each."""
    sections: list[tuple[list[str], list[str]]] = []
    for line in family.lines():
        if line.startswith("#"):
            if not sections or sections[-1][1]:
                sections.append(([], []))
            sections[-1][0].append(line)
        else:
            sections[-1][1].append(line)
    return sections


def render(families: Iterable[Family]) -> bytes:
    """Return the text of all families."""
    out: list[str] = []
    for family in families:
        out.extend(family.lines())
    out.append("")
    return "\n".join(out).encode()
