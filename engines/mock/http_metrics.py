"""The HTTP series that vLLM's web instrumentation prints after the engine's.

Separate because their label sets grow with the routes that were asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from engines.mock.account import Histogram
from engines.mock.exposition import HistogramFamily, labelled, number
from engines.mock.http_account import HttpAccount, Sizes


class HttpFamilies:
    """Prints the account of HTTP requests."""

    def __init__(self, account: HttpAccount, started_unix_s: float) -> None:
        self._account = account
        self._started_unix_s = started_unix_s

    def lines(self) -> Iterator[str]:
        """Yield all lines, in the instrumentation's order."""
        account = self._account
        yield from self._requests(account)
        yield from _sizes("http_request_size_bytes", "Bytes of requests by route.", account.request_sizes)
        yield from _sizes("http_response_size_bytes", "Bytes of answers by route.", account.response_sizes)
        yield from HistogramFamily(
            "http_request_duration_highr_seconds",
            "Durations of all requests in fine buckets (s).",
            {},
            account.all_durations,
            self._started_unix_s,
        ).lines()
        yield from _durations(account.durations)

    def _requests(self, account: HttpAccount) -> Iterator[str]:
        text = "Requests by method, status and route."
        series = [
            ({"handler": path, "method": method, "status": status}, sizes)
            for (path, method, status), sizes in account.requests.items()
        ]
        yield f"# HELP http_requests_total {text}"
        yield "# TYPE http_requests_total counter"
        for labels, sizes in series:
            yield f"{labelled('http_requests_total', labels)} {number(sizes.count)}"
        if series:
            yield f"# HELP http_requests_created {text}"
            yield "# TYPE http_requests_created gauge"
        for labels, sizes in series:
            yield f"{labelled('http_requests_created', labels)} {number(sizes.created)}"


def _sizes(name: str, text: str, routes: Mapping[str, Sizes]) -> Iterator[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} summary"
    for path, sizes in routes.items():
        labels = {"handler": path}
        yield f"{labelled(name + '_count', labels)} {number(sizes.count)}"
        yield f"{labelled(name + '_sum', labels)} {number(sizes.sum)}"
    if routes:
        yield f"# HELP {name}_created {text}"
        yield f"# TYPE {name}_created gauge"
    for path, sizes in routes.items():
        yield f"{labelled(name + '_created', {'handler': path})} {number(sizes.created)}"


def _durations(routes: Mapping[tuple[str, str], tuple[Histogram, float]]) -> Iterator[str]:
    name, text = "http_request_duration_seconds", "Durations by route (s)."
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} histogram"
    for (path, method), (histogram, created) in routes.items():
        labels = {"handler": path, "method": method}
        yield from HistogramFamily(name, text, labels, histogram, created).samples()
    if routes:
        yield f"# HELP {name}_created {text}"
        yield f"# TYPE {name}_created gauge"
    for (path, method), (_, created) in routes.items():
        yield f"{labelled(name + '_created', {'handler': path, 'method': method})} {number(created)}"
