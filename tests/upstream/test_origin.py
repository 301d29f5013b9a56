from __future__ import annotations

import pytest

from router.upstream.origin import Origin


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("http://10.0.0.1:8000", Origin("http", "10.0.0.1", 8000, "")),
        ("http://worker", Origin("http", "worker", 80, "")),
        ("https://worker/", Origin("https", "worker", 443, "")),
        ("https://Worker:1/engine/a/", Origin("https", "worker", 1, "/engine/a")),
        ("http://[::1]:8000/v", Origin("http", "::1", 8000, "/v")),
    ],
)
def test_url_is_read_with_its_defaults(url: str, origin: Origin) -> None:
    assert Origin.parse(url) == origin


def test_two_spellings_of_one_place_share_their_connections() -> None:
    assert len({Origin.parse("http://A:80/"), Origin.parse("http://a")}) == 1


def test_ipv6_stands_in_brackets_wherever_it_is_written() -> None:
    origin = Origin.parse("http://[fd00::2]:9000/base")
    assert origin.authority == "[fd00::2]:9000"
    assert str(origin) == origin.url == "http://[fd00::2]:9000/base"
    assert Origin.parse(origin.url) == origin


@pytest.mark.parametrize(
    ("url", "fault"),
    [
        ("worker:8000", "begin with http"),
        ("ftp://worker", "begin with http"),
        ("", "begin with http"),
        ("http://", "host is missing"),
        ("http://worker:99999", "port must be"),
        ("http://worker:0", "port must be"),
        ("http://worker:x", "port must be"),
        ("http://::1:8000", "in brackets"),
        ("http://[::1:8000", "brackets"),
        ("http://user:secret@worker", "credentials"),
        ("http://worker/?a=1", "query or fragment"),
        ("http://worker/#a", "query or fragment"),
        ("http://worker/a b", "printable ASCII"),
        ("http://worker/\r\nx: y", "printable ASCII"),
        ("http://wörker", "printable ASCII"),
    ],
)
def test_wrong_url_is_refused_with_its_fault(url: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        Origin.parse(url)
