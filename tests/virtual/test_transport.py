from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.virtual.clock import run
from router.virtual.transport import LinkSettings, MemoryTransport, connected_pair


class End(asyncio.Protocol):
    """Records what its transport tells it."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.log: list[str] = []
        self.keep_open = False
        self.lost: Exception | None = None
        self.fault: Exception | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, MemoryTransport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if self.fault is not None:
            raise self.fault
        self.pieces.append(data)

    def eof_received(self) -> bool:
        self.log.append("eof")
        return self.keep_open

    def connection_lost(self, exc: Exception | None) -> None:
        self.log.append("lost")
        self.lost = exc

    def pause_writing(self) -> None:
        self.log.append("pause")

    def resume_writing(self) -> None:
        self.log.append("resume")

    @property
    def data(self) -> bytes:
        return b"".join(self.pieces)


def pair(scene: Callable[[End, End], Awaitable[None]], settings: LinkSettings | None = None) -> None:
    async def main() -> None:
        ends = End(), End()
        loop = asyncio.get_running_loop()
        for end, transport in zip(ends, connected_pair(loop, ("a", 1), ("b", 2), settings), strict=True):
            transport.set_protocol(end)
            end.connection_made(transport)
        await scene(*ends)

    run(main())


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_bytes_arrive_in_order_and_both_ways() -> None:
    async def scene(a: End, b: End) -> None:
        a.transport.write(b"one ")
        a.transport.writelines([b"two ", bytearray(b"three"), memoryview(b" four")])
        b.transport.write(b"back")
        assert b.pieces == []  # never from inside write
        await turns()
        assert (b.data, a.data) == (b"one two three four", b"back")

    pair(scene)


@given(
    st.lists(st.binary(max_size=300), max_size=10),
    st.integers(1, 100),
    st.integers(1, 500),
    st.sampled_from([0.0, 0.003]),
)
def test_no_cutting_loses_or_reorders_a_byte(
    writes: list[bytes], piece_bytes: int, window_bytes: int, latency_s: float
) -> None:
    async def scene(a: End, b: End) -> None:
        for data in writes:
            a.transport.write(data)
        a.transport.close()
        await asyncio.sleep(10)
        assert b.data == b"".join(writes)
        assert all(len(piece) <= min(piece_bytes, window_bytes) for piece in b.pieces)
        assert b.log == ["eof", "lost"]
        assert a.log[-1] == "lost"

    pair(scene, LinkSettings(latency_s=latency_s, window_bytes=window_bytes, piece_bytes=piece_bytes))


def test_latency_is_virtual_time_and_keeps_the_spacing() -> None:
    async def scene(a: End, b: End) -> None:
        loop = asyncio.get_running_loop()
        a.transport.write(b"1")
        await asyncio.sleep(0.01)
        a.transport.write(b"2")
        await asyncio.sleep(0.0399)
        assert b.data == b""
        await asyncio.sleep(0.0002)
        assert b.data == b"1"
        await asyncio.sleep(0.01)
        assert b.data == b"12"
        assert loop.time() == pytest.approx(1000.0601)

    pair(scene, LinkSettings(latency_s=0.05))


def test_a_reader_that_pauses_makes_the_writer_pause_and_memory_stays_bounded() -> None:
    async def scene(a: End, b: End) -> None:
        b.transport.pause_reading()
        assert not b.transport.is_reading()
        sent = 0
        while "pause" not in a.log:
            a.transport.write(b"x" * 1000)
            sent += 1000
            await turns(2)
        assert sent <= 10_000 + 5_000 + 1000
        assert b.pieces == []
        b.transport.resume_reading()
        await turns(100)
        assert a.log == ["pause", "resume"]
        assert len(b.data) == sent
        assert a.transport.get_write_buffer_size() == 0

    async def limited(a: End, b: End) -> None:
        a.transport.set_write_buffer_limits(high=5_000)
        assert a.transport.get_write_buffer_limits() == (1250, 5000)
        await scene(a, b)

    pair(limited, LinkSettings(window_bytes=10_000))


def test_without_a_high_water_mark_every_unsent_byte_pauses() -> None:
    async def scene(a: End, b: End) -> None:
        a.transport.set_write_buffer_limits(high=0)
        b.transport.pause_reading()
        a.transport.write(b"x" * 10)
        assert a.log == []
        a.transport.write(b"x")
        assert a.log == ["pause"]
        b.transport.resume_reading()
        await turns()
        assert a.log == ["pause", "resume"]

    pair(scene, LinkSettings(window_bytes=10))


def test_wrong_limits_are_refused() -> None:
    async def scene(a: End, b: End) -> None:
        with pytest.raises(ValueError, match="high"):
            a.transport.set_write_buffer_limits(high=1, low=2)

    pair(scene)


def test_close_flushes_and_ends_both_sides() -> None:
    async def scene(a: End, b: End) -> None:
        a.transport.write(b"last words")
        a.transport.close()
        assert a.transport.is_closing()
        a.transport.write(b"too late")
        await turns()
        assert b.data == b"last words"
        assert (a.log, a.lost) == (["lost"], None)
        assert (b.log, b.lost) == (["eof", "lost"], None)

    pair(scene)


def test_close_waits_for_a_reader_that_has_paused() -> None:
    async def scene(a: End, b: End) -> None:
        b.transport.pause_reading()
        a.transport.write(b"x" * 100)
        a.transport.close()
        await turns()
        assert a.log == []
        b.transport.resume_reading()
        await turns()
        assert a.log == ["lost"]
        assert len(b.data) == 100

    pair(scene, LinkSettings(window_bytes=10))


def test_half_close_lets_the_other_direction_go_on() -> None:
    async def scene(a: End, b: End) -> None:
        b.keep_open = True
        assert a.transport.can_write_eof()
        a.transport.write(b"question")
        a.transport.write_eof()
        a.transport.write_eof()
        with pytest.raises(RuntimeError, match="write_eof"):
            a.transport.write(b"more")
        await turns()
        assert (b.data, b.log) == (b"question", ["eof"])
        b.transport.write(b"answer")
        b.transport.close()
        await turns()
        assert a.data == b"answer"
        assert a.log == ["eof", "lost"]
        assert b.log == ["eof", "lost"]

    pair(scene)


def test_abort_drops_what_was_not_sent_and_resets_the_peer() -> None:
    async def scene(a: End, b: End) -> None:
        a.transport.write(b"x" * 15)
        a.transport.abort()
        a.transport.abort()
        await turns()
        assert b.data == b"x" * 10  # what had left before
        assert a.log == ["lost"]
        assert a.lost is None
        assert b.log == ["lost"]
        assert isinstance(b.lost, ConnectionResetError)

    pair(scene, LinkSettings(window_bytes=10))


def test_bytes_for_a_closed_connection_are_answered_by_a_reset() -> None:
    async def scene(a: End, b: End) -> None:
        b.keep_open = True
        a.transport.close()
        await turns()
        assert b.log == ["eof"]
        b.transport.write(b"anybody there?")
        await turns()
        assert b.log == ["eof", "lost"]
        assert isinstance(b.lost, ConnectionResetError)

    pair(scene)


def test_a_writer_with_unsent_bytes_is_told_of_a_reset() -> None:
    async def scene(a: End, b: End) -> None:
        a.transport.pause_reading()
        b.transport.pause_reading()
        a.transport.write(b"x" * 100)
        b.transport.abort()
        await turns()
        assert a.log == ["lost"]
        assert isinstance(a.lost, OSError)

    pair(scene, LinkSettings(window_bytes=10))


def test_a_paused_reader_learns_of_a_reset_when_it_writes() -> None:
    async def scene(a: End, b: End) -> None:
        a.transport.pause_reading()
        b.transport.abort()
        await turns()
        assert a.log == []
        a.transport.write(b"x")
        await turns()
        assert isinstance(a.lost, BrokenPipeError)

    pair(scene)


def test_a_protocol_that_raises_loses_its_connection_and_the_error_is_kept() -> None:
    async def scene(a: End, b: End) -> None:
        b.fault = LookupError("in the protocol")
        a.transport.write(b"x")
        await turns()
        assert isinstance(b.lost, LookupError)
        assert isinstance(a.lost, ConnectionResetError)

    with pytest.raises(LookupError, match="in the protocol"):
        pair(scene)


def test_addresses_and_state_are_visible() -> None:
    async def scene(a: End, b: End) -> None:
        assert a.transport.get_extra_info("sockname") == ("a", 1)
        assert a.transport.get_extra_info("peername") == ("b", 2) == b.transport.get_extra_info("sockname")
        assert a.transport.get_extra_info("socket") is None
        assert a.transport.get_protocol() is a
        assert repr(a.transport) == "<MemoryTransport to ('b', 2) [open | 0 bytes queued]>"
        a.transport.abort()
        assert "[lost |" in repr(a.transport)
        with pytest.raises(TypeError, match="Protocol"):
            a.transport.set_protocol(asyncio.DatagramProtocol())

    pair(scene)
