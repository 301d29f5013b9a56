"""One incarnation of a worker in the prefix index, and the claims that its dispatches make.

Separate because the index, its bounds and its figures all work on the same few facts about a worker.
"""

from __future__ import annotations

import math

import msgspec

from router.core.errors import InternalError
from router.core.prefix_error import PrefixError
from router.core.prefix_ledger import Ledger
from router.core.prefix_settings import PrefixSettings
from router.core.prefix_tree import Book, End, PrefixTree
from router.core.trust import TRUST, Trust, TrustSignal, beliefs_signal, events_signal

_LOSS_WEIGHT = 0.25
_LOSSES_ARE_THE_RULE = 0.5


class Holder:
    """What is known of one worker's incarnation.

    Attributes:
        bit: of this incarnation in the masks of the trees.
        text: prompts believed to be held, as text.
        blocks: the same as hashes of token blocks.
        predicted: token prompts dispatched in the last seconds, until the engine's events speak of them.
        ledger: what its events say, None while they are not followed.
        listening: whether its events arrive at present.
        counted: whether its ledger knows of all blocks, so that their number bounds what is believed.
        pending_tokens: of dispatches whose outcome is not known.
        kv_capacity_tokens: None when nobody said.
        beliefs: how well our dispatches predict the cached tokens that it reports.
        events: how well its events do.
        forgotten: what was last used at that time (s) or earlier is held no more.
        gone: its slot is retired; claims that come back change nothing.
    """

    __slots__ = (
        "_losses", "beliefs", "bit", "blocks", "counted", "events", "forgotten", "gone", "incarnation",
        "kv_capacity_tokens", "ledger", "listening", "name", "pending_tokens", "predicted", "text", "trust",
    )  # fmt: skip

    def __init__(self, name: str, incarnation: int, bit: int) -> None:
        self.name = name
        self.incarnation = incarnation
        self.bit = bit
        self.text = Book(bit)
        self.blocks = Book(bit)
        self.predicted = Book(bit)
        self.ledger: Ledger | None = None
        self.listening = False
        self.counted = False
        self.pending_tokens = 0
        self.kv_capacity_tokens: int | None = None
        self.trust = Trust.APPROXIMATE
        self.beliefs = PrefixError()
        self.events = PrefixError()
        self.forgotten = -math.inf
        self.gone = False
        self._losses = 0.0

    @property
    def empty(self) -> bool:
        return not (self.text.ends or self.blocks.ends or self.predicted.ends)

    def signal(self, signal: TrustSignal) -> None:
        """Takes the step that the table gives for it.

        Raises InternalError if the table has none: a bug.
        """
        trust = TRUST.get((self.trust, signal))
        if trust is None:
            raise InternalError(f"{self!r} cannot take {signal.value}")
        self.trust = trust

    def learn(self, claim: Claim, prompt_tokens: int, cached_tokens: int, settings: PrefixSettings) -> None:
        """The engine said how much of a prompt was cached: judges beliefs, events, memory, and then trust."""
        scale = prompt_tokens / claim.tokens if claim.tokens else 0.0
        most = prompt_tokens - 1
        block = settings.block_tokens if self.ledger is None else self.ledger.block_tokens
        held = _whole(min(claim.held_tokens * scale, most), block)
        self.beliefs.see(held, cached_tokens, prompt_tokens)
        self._compare(claim.sure_tokens * scale, claim.sure_touched, cached_tokens, settings.lost_share)
        signals = [beliefs_signal(self.beliefs, settings.trust)]
        if claim.stored_tokens is not None and self.listening:
            self.events.see(_whole(min(claim.stored_tokens, most), block), cached_tokens, prompt_tokens)
            signals.append(events_signal(self.events, settings.trust))
        for signal in signals:
            if signal is not None:
                self.signal(signal)

    def _compare(self, sure_tokens: float, touched: float, reported_tokens: int, lost_share: float) -> None:
        """Learns from a prefix that the worker surely had at `touched` whether it forgets sooner than we do.

        An LRU cache that lost most of what it used then has lost all that it used before. One such report may
        have other reasons (a template that renders history anew, text that is not in the key), so only when
        losses have become the rule does it count.
        """
        if sure_tokens <= 0:
            return
        lost = reported_tokens < lost_share * sure_tokens
        self._losses += (lost - self._losses) * _LOSS_WEIGHT
        if lost and self._losses > _LOSSES_ARE_THE_RULE:
            self.forgotten = max(self.forgotten, touched)

    def __repr__(self) -> str:
        return f"<Holder {self.name}#{self.incarnation} {self.trust.value} [{self.text!r} | {self.blocks!r}]>"


def _whole(tokens: float, block: int) -> int:
    """What an engine takes from its cache of so many tokens: whole blocks of its own, and never the last
    token of a prompt, which it computes always."""
    return int(tokens) // max(block, 1) * max(block, 1)


class Claim(msgspec.Struct, eq=False):
    """The belief that one dispatch makes, until its outcome confirms or withdraws it.

    Attributes:
        tree, book, end: where it stands among the beliefs.
        predicted: where it stands among the predictions, for a worker whose events are followed.
        tokens: of the prompt, as far as known at dispatch.
        held_tokens: of these, believed to be cached at the worker before.
        sure_tokens, sure_touched: the part of `held_tokens` that was a confirmed prompt of its own, and when
            that was last used (s).
        stored_tokens: what the worker's events said of it, None without them.
        text_bytes: of a prompt of text, 0 for one of token ids.
        whole: whether all of the prompt was believed, not only what fits into the worker.
    """

    holder: Holder
    tree: PrefixTree
    book: Book
    end: End
    tokens: int
    held_tokens: int
    sure_tokens: int
    sure_touched: float
    predicted: End | None = None
    stored_tokens: int | None = None
    text_bytes: int = 0
    whole: bool = True
    settled: bool = False

    def __repr__(self) -> str:
        state = "settled" if self.settled else "pending"
        return f"<Claim on {self.holder.name} [{self.held_tokens} of {self.tokens} tokens held | {state}]>"
