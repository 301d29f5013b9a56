"""When a request is not split into a prefill and a decode leg, and where it goes instead.

One ordered table: the first rule that applies decides. Separate from the pools, because it is about two of
them at once, and from the proxy, because every reason is counted and explained by name.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from router.core.errors import BadRequest, NoWorker, RouterError

_RETRY_AFTER_S = 5.0


class Unsplit(enum.Enum):
    """Why a request is served whole by one worker."""

    # Members are single: identity is enough, and Enum's own hash is a Python call per look-up.
    __hash__ = object.__hash__

    STORED = "stored"
    """Pinned to the worker that holds the stored response it continues."""
    NOT_GENERATED = "not_generated"
    """Embeddings, rerank, tokenize …: there is nothing to decode."""
    NO_HANDLE = "no_handle"
    """Its prefill was answered without a handle, so there is nothing that a decode leg could fetch."""
    ONE_TOKEN = "one_token"
    """At most one output token: whoever prefills it has the whole answer."""
    SEQUENCES = "sequences"
    """Several sequences (n, best_of, beams, a list of prompts) would read one handle, and the first one to
    have read it frees the KV under the others."""
    PROMPT_LOGPROBS = "prompt_logprobs"
    """The decode engine would compute the prompt again: vLLM skips external KV for these."""
    BEAM_SEARCH = "beam_search"
    """vLLM runs it as many requests of its own making, none of which carries a handle."""
    TRUNCATED = "truncated"
    """The engine is to cut the prompt, and by how much depends on the bound on output tokens, which is
    another one in the prefill leg: the KV would be that of another prompt."""
    SHORT = "short"
    """Its prefill takes less time than the transfer is worth, and some worker may do both."""
    NO_PREFILL = "no_prefill"
    """No prefill worker is alive, or none whose KV a decode worker could take now."""


class Where(enum.Enum):
    """Which workers may take a request whole."""

    # Members are single: identity is enough, and Enum's own hash is a Python call per look-up.
    __hash__ = object.__hash__

    BOTH_CAPABLE = "both_capable"
    """Those of either pool that are configured to prefill and decode."""
    PREFILL = "prefill"
    DECODE = "decode"


class Fallback(enum.Enum):
    """What happens to a request that is to be split when no prefill worker is alive."""

    AGGREGATED = "aggregated"
    STRICT = "strict"
    """It is refused: decode workers never prefill what was meant for others."""


class SplitFacts(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the rules look at: the request, its connector, and who is there for its model.

    Attributes:
        generates: whether its API decodes token by token.
        prompt_tokens: of all prompts together, as far as they have to be prefilled.
        max_tokens: bound on output tokens per sequence, None when the client gave none.
        sequences: that would read one handle: n, best_of or the beam width, times the number of prompts.
        traits: what its body asks for that no two engines can do together.
        pinned: on which side the owner of its stored response is, None for a request that has none.
        handle_missing: its prefill leg was answered well and brought no handle.
        prefill_ready, decode_ready: somebody of that role is alive.
        producer_ready: a prefill worker is, whose KV a decode worker could take now.
        may_do_both: a ready worker may prefill and decode.
        sequences_on_handle: the connector gives every sequence a handle of its own (SGLang's rooms).
        prefill_takes_whole, decode_takes_whole: an engine of that role serves a request without a partner.
            vLLM's do; SGLang's answer 400 to a request without a bootstrap room.
    """

    generates: bool
    prompt_tokens: int
    max_tokens: int | None = None
    sequences: int = 1
    traits: frozenset[Unsplit] = frozenset()
    pinned: Where | None = None
    handle_missing: bool = False
    prefill_ready: bool = True
    decode_ready: bool = True
    producer_ready: bool = True
    may_do_both: bool = False
    sequences_on_handle: bool = False
    prefill_takes_whole: bool = True
    decode_takes_whole: bool = True


@dataclass(frozen=True, slots=True)
class Whole:
    """Not split: one worker of this kind serves all of it."""

    why: Unsplit
    where: Where


@dataclass(frozen=True, slots=True)
class Refusal:
    """Neither split nor served whole.

    Attributes:
        why: what keeps it from being split.
        lasting: the request itself rules it out, so another try later ends the same.
    """

    why: Unsplit
    lasting: bool

    def error(self) -> RouterError:
        """What the client is told."""
        if self.lasting:
            return BadRequest(
                f"This request cannot be split into prefill and decode ({_IN_WORDS[self.why]}), and no "
                f"worker of this model serves a request whole."
            )
        words = _IN_WORDS[self.why]
        return NoWorker(
            f"{words[0].upper()}{words[1:]}, and no worker may serve the request whole.",
            retry_after_s=_RETRY_AFTER_S,
        )


_IN_WORDS: dict[Unsplit, str] = {
    Unsplit.STORED: "it continues a stored response",
    Unsplit.NOT_GENERATED: "it generates nothing",
    Unsplit.NO_HANDLE: "the prefill brought no KV to hand over",
    Unsplit.ONE_TOKEN: "it asks for one token",
    Unsplit.SEQUENCES: "it asks for several sequences",
    Unsplit.PROMPT_LOGPROBS: "it asks for log probabilities of its prompt",
    Unsplit.BEAM_SEARCH: "it asks for a beam search",
    Unsplit.TRUNCATED: "it has its prompt truncated",
    Unsplit.SHORT: "its prompt is short",
    Unsplit.NO_PREFILL: "no prefill worker can hand KV over now",
}
OF_THE_BODY = (Unsplit.PROMPT_LOGPROBS, Unsplit.BEAM_SEARCH, Unsplit.TRUNCATED)
"""Reasons that a request carries in its own body."""

_NEED_A_PREFILL = frozenset({Unsplit.NO_HANDLE, Unsplit.NO_PREFILL})
"""Reasons that lie in the prefill workers: strict mode refuses what they keep from being split."""

_LASTING = frozenset({Unsplit.STORED, Unsplit.SEQUENCES, *OF_THE_BODY})

Applies = Callable[[SplitFacts, int], bool]


def _has(trait: Unsplit) -> Applies:
    return lambda facts, _: trait in facts.traits


RULES: tuple[tuple[Unsplit, Applies, tuple[Where, ...]], ...] = (
    (Unsplit.STORED, lambda f, _: f.pinned is not None, ()),
    (Unsplit.NOT_GENERATED, lambda f, _: not f.generates, (Where.BOTH_CAPABLE, Where.PREFILL, Where.DECODE)),
    (Unsplit.NO_HANDLE, lambda f, _: f.handle_missing, (Where.BOTH_CAPABLE, Where.DECODE)),
    (
        Unsplit.ONE_TOKEN,
        lambda f, _: (
            f.max_tokens is not None and f.max_tokens <= 1 and f.prefill_ready and f.prefill_takes_whole
        ),
        (Where.PREFILL,),
    ),
    (
        Unsplit.SEQUENCES,
        lambda f, _: f.sequences > 1 and not f.sequences_on_handle,
        (Where.BOTH_CAPABLE, Where.DECODE),
    ),
    *((trait, _has(trait), (Where.BOTH_CAPABLE, Where.DECODE)) for trait in OF_THE_BODY),
    (
        Unsplit.SHORT,
        lambda f, min_tokens: f.prompt_tokens < min_tokens and f.may_do_both,
        (Where.BOTH_CAPABLE,),
    ),
    (Unsplit.NO_PREFILL, lambda f, _: not f.producer_ready, (Where.BOTH_CAPABLE, Where.DECODE)),
)
"""(why, whether it applies to these facts with this `min_tokens`, who may take it: the best first).

The request's own nature comes before the state of the fleet, so that strict mode refuses only what a prefill
worker would have been needed for. A stored response has one owner, and no choice.
"""


@dataclass(frozen=True, slots=True)
class SplitRule:
    """The table with its two settings.

    Attributes:
        min_tokens: prompts that are shorter stay whole where a worker may do both; 0 splits all of them.
        fallback: what is done without a prefill worker.
    """

    min_tokens: int = 512
    fallback: Fallback = Fallback.AGGREGATED

    def decide(self, facts: SplitFacts) -> Whole | Refusal | None:
        """None: split it. Somebody to decode may still be missing then: the queues know whether to wait.

        So may be the workers that a whole request is sent to, when nobody of a better place is alive.
        """
        for why, applies, places in RULES:
            if applies(facts, self.min_tokens):
                return self._whole(why, places, facts)
        return None

    def _whole(self, why: Unsplit, places: tuple[Where, ...], facts: SplitFacts) -> Whole | Refusal:
        if why in _NEED_A_PREFILL and self.fallback is Fallback.STRICT:
            return Refusal(why, lasting=False)
        if facts.pinned is not None:
            places = (facts.pinned,)
        able = [where for where in places if _able(where, facts)]
        if not able:
            return Refusal(why, lasting=why in _LASTING)
        return Whole(why, next((where for where in able if _alive(where, facts)), able[-1]))


def _able(where: Where, facts: SplitFacts) -> bool:
    """Whether an engine there serves a request without a partner. Without output it needs none."""
    if where is Where.BOTH_CAPABLE:
        return facts.may_do_both or facts.pinned is where
    if not facts.generates:
        return True
    return facts.prefill_takes_whole if where is Where.PREFILL else facts.decode_takes_whole


def _alive(where: Where, facts: SplitFacts) -> bool:
    if where is Where.BOTH_CAPABLE:
        return True
    return facts.prefill_ready if where is Where.PREFILL else facts.decode_ready
