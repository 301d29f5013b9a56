"""A prefix index, and what tests ask and tell it."""

from __future__ import annotations

from router.core.kv_event import BlocksStored
from router.core.prefix_holder import Claim
from router.core.prefix_index import PrefixIndex, Prompt
from router.core.prefix_settings import PrefixSettings
from router.core.prompt_key import Partition
from router.core.trust import Trust, TrustSignal

PART = Partition("model", "", "")
TEXT = b"system: be kind. " * 10
IDS = tuple(range(100, 228))


def index_of(
    *workers: str, settings: PrefixSettings | None = None, capacity: int | None = None
) -> PrefixIndex:
    index = PrefixIndex(settings)
    for worker in workers:
        index.admit(worker, 0, capacity)
    return index


def dispatch(index: PrefixIndex, prompt: Prompt, worker: str, now: float = 0.0, tokens: int = 100) -> Claim:
    claim = index.insert(PART, prompt, worker, now, prompt_tokens=tokens)
    assert claim is not None
    return claim


def serve(index: PrefixIndex, prompt: Prompt, worker: str, now: float = 0.0, tokens: int = 100) -> Claim:
    claim = dispatch(index, prompt, worker, now, tokens)
    index.confirm(claim, now)
    return claim


def cached(index: PrefixIndex, prompt: Prompt, tokens: int = 100) -> dict[str, int]:
    return index.match(PART, prompt, tokens).tokens


def blocks(
    tokens: tuple[int, ...] = IDS, names: range = range(1, 9), parent: int | None = None
) -> BlocksStored:
    return BlocksStored(PART, tuple(names), parent, tokens, 16)


def followed(index: PrefixIndex, worker: str) -> None:
    index.follow(worker)
    index.stream(worker, TrustSignal.COMPLETE)
    assert index.trust(worker, text=False) is Trust.EXACT
