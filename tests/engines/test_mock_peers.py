"""Messages between mock engines over real sockets, and a request split over two processes."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from typing import Any

import pytest

from engines.mock.peers import SIDE_CHANNEL, Address, PeerUnreachable, TcpPeers
from tests.engines.mock_processes import engines
from tests.engines.pd_stage import ASK, COMPLETIONS, SIZE, prefill_body

FLAGS = ("--time-scale", "0.1", "--kv-tokens", "1600", "--max-model-len", "512")
BODY = {**ASK, "model": "qwen2.5-3b"}


def post(url: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(
        url + path, json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        found = json.load(answer)
    assert isinstance(found, dict)
    return found


def state(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}/mock/state", timeout=30) as answer:
        found = json.load(answer)
    assert isinstance(found, dict)
    return found


def test_two_processes_hand_kv_over() -> None:
    assert SIZE == {"kv_tokens": 1600, "max_model_len": 512}
    with (
        engines("--role", "prefill", *FLAGS) as (_, prefills),
        engines("--role", "decode", "--count", "2", *FLAGS) as (_, decodes),
    ):
        alone = post(prefills[0], COMPLETIONS, BODY)
        for decode in decodes:
            handle = post(prefills[0], COMPLETIONS, prefill_body(BODY))["kv_transfer_params"]
            assert state(prefills[0])["kv_connector"]["kept"] == 1
            split = post(decode, COMPLETIONS, {**BODY, "kv_transfer_params": handle})
            assert split["choices"] == alone["choices"]
            assert state(prefills[0])["kv_usage"] == 0.0
            counted = urllib.request.urlopen(f"{decode}/metrics", timeout=30).read().decode()
            assert 'source="external_kv_transfer"} 110.0' in counted
        assert (
            state(decodes[0])["kv_connector"]["engine_id"] != state(decodes[1])["kv_connector"]["engine_id"]
        )


def asking(answer: bytes | None) -> bytes:
    """What `TcpPeers` makes of a server that answers so; None hangs up."""

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"POST %s HTTP/1.1\r\nhost: 127.0.0.1:" % SIDE_CHANNEL.encode())
        assert await reader.readexactly(5) == b"hello"
        if answer is not None:
            writer.write(answer)
        writer.close()
        await writer.wait_closed()

    async def main() -> bytes:
        server = await asyncio.start_server(served, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            return await TcpPeers().ask("127.0.0.1", port, b"hello")

    return asyncio.run(main())


def test_an_answer_comes_back() -> None:
    assert asking(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi") == b"hi"


@pytest.mark.parametrize("answer", [None, b"", b"nonsense", b"HTTP/1.1 404 Not Found\r\n\r\n"])
def test_what_is_no_answer_is_an_unreachable_peer(answer: bytes | None) -> None:
    with pytest.raises(PeerUnreachable, match="no answer"):
        asking(answer)


def test_a_port_where_nobody_listens_is_an_unreachable_peer() -> None:
    with pytest.raises(PeerUnreachable, match="does not accept"):
        asyncio.run(TcpPeers().ask("127.0.0.1", 1, b"hello"))


def test_an_ipv6_address_has_brackets() -> None:
    assert (Address("::1", 5).authority, Address("p", 5).authority) == ("[::1]:5", "p:5")
