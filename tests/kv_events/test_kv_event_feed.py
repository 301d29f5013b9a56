"""Between listener and index: late words reach nobody, and changes are told. And wires that open late."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from router.core.kv_event import BlocksStored
from router.core.prefix_ledger import Fit
from router.core.prefixes import PoolPrefixes
from router.core.prompt_key import Partition, PromptKey
from router.core.trust import Trust, TrustSignal
from router.core.worker import Worker
from router.kv_events.feed import Feed
from router.kv_events.lazy_wire import LazyWire, open_zmq, zmq_is_installed
from router.kv_events.settings import KvEventsSettings
from router.kv_events.source import EventSource
from tests.core.fleet_examples import request

PART = Partition("m", "", "")
IDS = tuple(range(32))
STORED = BlocksStored(PART, (1, 2), None, IDS, 16)


def prefixes(*workers: Worker) -> PoolPrefixes:
    made = PoolPrefixes()
    for worker in workers:
        made.joined(worker)
    return made


def asked() -> Any:
    return request(key=PromptKey("m", lambda: {"prompt": b"[%b]" % b",".join(b"%d" % i for i in IDS)}))


def test_what_events_say_is_in_the_next_answer() -> None:
    one, known = asked(), prefixes(Worker(name="a"))
    feed = Feed(known, 0)
    feed.follow("a")
    feed.stream("a", TrustSignal.COMPLETE)
    assert known.matched(one).tokens == {}
    assert feed.apply("a", STORED) is Fit.WELL
    assert known.matched(one).tokens == {"a": 31}
    feed.stream("a", TrustSignal.SILENT)
    assert known.matched(one).tokens == {}


def test_an_old_incarnation_says_nothing_more() -> None:
    worker = Worker(name="a")
    known = prefixes(worker)
    old = Feed(known, 0)
    old.follow("a")
    worker.incarnation = 1
    known.joined(worker)
    old.follow("a")
    assert old.apply("a", STORED) is Fit.WELL
    old.stream("a", TrustSignal.COMPLETE)
    holder = known.index.holder("a")
    assert holder is not None
    assert (holder.ledger, holder.trust) == (None, Trust.APPROXIMATE)
    assert repr(old).startswith("<Feed 0 <PoolPrefixes")


def test_an_index_that_was_closed_is_told_nothing() -> None:
    known = prefixes(Worker(name="a"))
    feed = Feed(known, 0)
    feed.follow("a")
    known.close()
    assert feed.apply("a", STORED) is Fit.WELL
    feed.stream("a", TrustSignal.SILENT)
    assert known.index.workers == frozenset()


class Wire:
    """Counts what is asked of it."""

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls
        calls.append("opened")

    def subscribe(self, source: EventSource) -> Any:
        self.calls.append("subscribed")

    def replay(self, source: EventSource, start: int) -> Any:
        self.calls.append(f"replayed from {start}")

    def close(self) -> None:
        self.calls.append("closed")


def test_a_wire_is_opened_at_its_first_use() -> None:
    calls: list[str] = []
    wire, source = LazyWire(lambda: Wire(calls)), EventSource("tcp://e:1", "tcp://e:2")
    wire.close()
    assert calls == []
    wire.subscribe(source)
    wire.replay(source, 3)
    wire.close()
    wire.close()
    assert calls == ["opened", "subscribed", "replayed from 3", "closed"]
    assert repr(wire) == "<LazyWire None>"


def test_with_pyzmq_it_is_a_wire_of_sockets() -> None:
    assert zmq_is_installed()
    open_zmq(KvEventsSettings(), lambda: 0.0).close()


@pytest.mark.parametrize("words", [("router.app",), ("router.cli.serve",)])
def test_without_pyzmq_and_tokenizers_the_router_starts(words: Sequence[str]) -> None:
    code = (
        "import sys\n"
        "for name in ('zmq', 'tokenizers', 'jinja2'): sys.modules[name] = None\n"
        f"import {words[0]}\n"
        "from router.kv_events.lazy_wire import zmq_is_installed\n"
        "assert not zmq_is_installed()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
