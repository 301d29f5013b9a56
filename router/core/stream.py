"""What the byte relay learns from a stream while it forwards it.

Separate from `sse` because it knows what events mean, and from the relay because it does no I/O. One scanner
follows one attempt at one worker. Bytes leave as they came: the only change is that the usage event which the
router itself asked for is dropped whole.

The common event costs a few byte searches and no JSON. They are sound, because a quote inside a JSON string
is always escaped: `"usage":` with bare quotes can only be a key. Most events cost less still: they repeat the
one before but for the text, see `Shape`.
"""

from __future__ import annotations

import re

from router.core.errors import InternalError
from router.core.request import Api
from router.core.sse import MAX_EVENT_BYTES, BlockSplitter, Event, parse_block
from router.core.stream_events import StreamFacts, read_event

_BOM = b"\xef\xbb\xbf"
_SPACE = 0x20
_NULL = ord("n")
_OPENAI = (Api.CHAT, Api.COMPLETIONS)
_TEXT = re.compile(rb'"(?:content|text|reasoning|reasoning_content|arguments)": ?"([^"\\\r\n]+)"')


class Shape:
    """The bytes before and after the text of an event that holds nothing but text.

    Engines write every token's event alike. An event that begins and ends like the one that was read, with
    neither a quote nor a line end in between, differs from it in the text alone: without a bare quote the
    string cannot end earlier, and so no other key can stand there.
    """

    __slots__ = ("_before", "_before_bytes", "_behind", "_behind_bytes", "_learn_at", "_learned_at", "_pause")

    def __init__(self) -> None:
        self._before = b""
        self._behind = b""
        self._before_bytes = 0
        self._behind_bytes = 0
        self._learned_at = 0
        self._learn_at = 0
        self._pause = 1

    def fits(self, data: bytes) -> bool:
        """Whether `data` is one whole event of this shape."""
        if not self._before_bytes or not data.startswith(self._before) or not data.endswith(self._behind):
            return False
        start = self._before_bytes
        end = len(data) - self._behind_bytes
        return (
            end >= start
            and data.find(b'"', start, end) < 0
            and data.find(b"\n", start, end) < 0
            and data.find(b"\r", start, end) < 0
        )

    def learn(self, data: bytes, events: int) -> None:
        """Takes the shape of `data`, a text event, the `events`-th of its stream.

        Where shapes keep changing (several choices by turns) it is tried ever more rarely.
        """
        if events < self._learn_at:
            return
        self._pause = 1 if events - self._learned_at > 4 else min(2 * self._pause, 64)
        self._learned_at = events
        self._learn_at = events + self._pause
        text = _TEXT.search(data)
        if text is not None:
            self._before, self._behind = data[: text.start(1)], data[text.end(1) :]
            self._before_bytes, self._behind_bytes = len(self._before), len(self._behind)


class StreamScanner:
    """Scans one event stream; `feed` gives the bytes to forward, `facts` what they said.

    Args:
        api: decides what the events mean.
        hide_usage: drop the usage-only event: the client did not ask for it, the router did. An unfinished
            event is then held back until it cannot be that one.
        choices: how many choices the client will see (n times the number of prompts). That many finish
            reasons make a stream complete whose engine sends no `[DONE]`.
        max_event_bytes: bound of one event.
    """

    __slots__ = (
        "_api",
        "_blocks",
        "_choices",
        "_hide_usage",
        "_idle",
        "_openai",
        "_released",
        "_shape",
        "facts",
    )

    def __init__(
        self,
        api: Api,
        *,
        hide_usage: bool = False,
        choices: int = 1,
        max_event_bytes: int = MAX_EVENT_BYTES,
    ) -> None:
        if not api.generates:
            raise InternalError(f"The API {api.value!r} has no event stream.")
        self._api = api
        self._openai = api in _OPENAI
        self._hide_usage = hide_usage and self._openai
        self._choices = max(choices, 1)
        self._blocks = BlockSplitter(max_event_bytes)
        self._idle = True  # no byte of an unfinished event is kept
        self._released = 0  # bytes of the unfinished event that were forwarded
        self._shape = Shape()
        self.facts = StreamFacts()

    def feed(self, data: bytes) -> bytes:
        """The bytes to forward now: `data` itself, unless something is held, released or dropped.

        Raises:
            EventTooLong: an event is over the bound.
        """
        if self._idle and self._shape.fits(data):
            self._count_text()
            return data
        if self._idle and self._is_chunk(data):
            return data if self._chunk(data) else b""
        blocks = self._blocks.feed(data)
        if self._hide_usage:
            forwarded = self._feed_hiding(data, blocks)
        else:
            for block in blocks:
                self._block(block)
            forwarded = data
            self._released = self._blocks.pending_bytes
        self._idle = self._blocks.idle
        return forwarded

    def flush(self) -> bytes:
        """What is still held back when the stream has ended; by then it is no event, only bytes."""
        held = self._blocks.pending[self._released :]
        self._released += len(held)
        return held

    @property
    def complete(self) -> bool:
        """Whether the stream has come to the end that its API promises, without error or abort."""
        facts = self.facts
        if facts.failed:
            return False
        return facts.done or (self._openai and len(facts.finish_reasons) >= self._choices)

    @property
    def at_boundary(self) -> bool:
        """Whether the client has only whole events, so that an event of the router's own may follow."""
        if self._released == 0:
            return True
        return self._released <= 4 and not self._blocks.pending.strip(b"\r\n")  # spare blank lines

    def _feed_hiding(self, data: bytes, blocks: list[bytes]) -> bytes:
        forward: list[bytes] = []
        for block in blocks:
            if self._block(block):
                forward.append(block[self._released :] if self._released else block)
            self._released = 0
        pending = self._blocks.pending
        if len(pending) > self._released and self._may_release(pending):
            forward.append(pending[self._released :])
            self._released = len(pending)
        whole = b"".join(forward) if len(forward) != 1 else forward[0]
        return data if whole == data else whole

    def _may_release(self, pending: bytes) -> bool:
        """An event that has begun a choice, or has no JSON, is not the usage-only one."""
        if self._released:
            return True
        return _begins_choice(pending) or pending.startswith((b":", b"event:"))

    def _block(self, block: bytes) -> bool:
        """Takes one whole block; False when it is to be dropped."""
        if self._shape.fits(block):
            self._count_text()
            return True
        if self._is_chunk(block):
            return self._chunk(block)
        facts = self.facts
        event = parse_block(block if facts.events else block.removeprefix(_BOM))
        if event is None:
            facts.comments += b":" in block
            return True
        if self._api is Api.MESSAGES and event.event == "content_block_delta":
            self._shape.learn(block, facts.content_events)
        return self._event(event)

    def _is_chunk(self, data: bytes) -> bool:
        """Whether `data` is one event of chat or completions on one line, after the first one: that one is
        read in full, for its id."""
        return (
            self._openai
            and self.facts.data_events > 0
            and data.startswith(b"data: {")
            and data.find(b"\n") == len(data) - 2
            and data.endswith(b"\n\n")
            and b"\r" not in data
        )

    def _chunk(self, data: bytes) -> bool:
        """Takes such an event; its JSON is read only where it says more than text."""
        facts = self.facts
        if (
            _says(data, b'"finish_reason":')
            or _says(data, b'"token_ids":')
            or _says(data, b'"usage":')
            or _says(data, b'"error":')
            or not _begins_choice(data)
            or not facts.content_events
        ):
            return self._event(Event(data[6:-2]))
        self._shape.learn(data, facts.content_events)
        self._count_text()
        return True

    def _count_text(self) -> None:
        facts = self.facts
        facts.events += 1
        facts.data_events += 1
        facts.content_events += 1

    def _event(self, event: Event) -> bool:
        usage_only = read_event(self._api, event, self.facts)
        return not (usage_only and self._hide_usage)

    def __repr__(self) -> str:
        facts = self.facts
        state = "failed" if facts.failed else "complete" if self.complete else "open"
        return f"<StreamScanner {self._api.value} [{facts.events} events | {state}]>"


def _begins_choice(data: bytes) -> bool:
    return b'"choices":[{' in data or b'"choices": [{' in data


def _says(data: bytes, key: bytes) -> bool:
    """Whether `key` (with quotes and colon) occurs with a value other than null."""
    at = data.find(key)
    while at >= 0:
        at += len(key)
        value = data[at]
        if value == _SPACE:
            value = data[at + 1]
        if value != _NULL:
            return True
        at = data.find(key, at)
    return False
