"""Names, options, and what each connector lets the router do."""

from __future__ import annotations

import pytest

from router.connectors import CONNECTORS, ConnectorError, Handle, LegBody, Peer, build_connector
from tests.connectors.connector_examples import NAMES


def test_the_names_are_those_of_the_command_line() -> None:
    assert tuple(CONNECTORS) == NAMES
    assert [build_connector(name).name for name in NAMES] == list(NAMES)


def test_an_unknown_connector_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConnectorError, match="'nyxl' is unknown; allowed: nixl, mooncake, sglang, none"):
        build_connector("nyxl")


@pytest.mark.parametrize(
    ("name", "has"), [("nixl", "lease_s"), ("mooncake", "concurrent, lease_s"), ("sglang", "none")]
)
def test_an_unknown_option_is_refused_with_the_known_ones(name: str, has: str) -> None:
    with pytest.raises(ConnectorError, match=f"'{name}' has no option 'colour'; it has: {has}$"):
        build_connector(name, colour="red")


@pytest.mark.parametrize("name", NAMES)
def test_a_connector_says_what_may_be_done_with_it(name: str) -> None:
    made = build_connector(name)
    assert {
        "nixl": (False, 30.0, False, True, False, True),
        "mooncake": (False, 480.0, True, True, False, True),
        "sglang": (True, None, False, False, True, False),
        "none": (False, None, False, True, True, False),
    }[name] == (
        made.concurrent,
        made.lease_s,
        made.asks_bootstrap,
        made.decode_takes_whole,
        made.sequences_on_handle,
        made.needs_handle,
    )


def test_options_replace_the_defaults() -> None:
    assert build_connector("nixl", lease_s=12.0).lease_s == 12.0
    concurrent = build_connector("mooncake", concurrent=True)
    assert (concurrent.concurrent, concurrent.needs_handle) == (True, False)


@pytest.mark.parametrize(
    ("host", "written"), [("::1", "[::1]"), ("[::1]", "[::1]"), ("10.0.0.1", "10.0.0.1"), ("p-0", "p-0")]
)
def test_an_ipv6_address_stands_in_brackets(host: str, written: str) -> None:
    assert Peer(host).url_host == written


def test_neither_prompts_nor_handles_show_in_a_repr() -> None:
    leg = LegBody(b'{"prompt":"secret"}', target=b"/v1/completions")
    assert repr(leg) == "<LegBody /v1/completions [19 bytes]>"
    assert repr(Handle(b'{"a":1}', 5, None, "length")) == "<Handle [7 bytes | 5 tokens | length]>"
