"""The tokenizers of all pools, and the threads that they work in.

Separate from a tokenizer, which only computes: rendering and encoding a long prompt takes tens of
milliseconds, in which every stream of the router would stand still. It is done beside the event loop, within
bounds of size, number and time; a prompt beyond one of them is keyed as text, and nobody waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial

from router.core.body_text import PromptSize
from router.core.prompt_key import PromptKey
from router.core.request import Api
from router.dispatch import Dispatcher
from router.tokenizer.conversation import NotRendered
from router.tokenizer.tokenizer import Tokenizer

log = logging.getLogger("pointsman.tokenizer")

_RENDERED = frozenset({Api.CHAT, Api.COMPLETIONS})


@dataclass(frozen=True, slots=True)
class TokenizerBounds:
    """What a request may wait for.

    Attributes:
        max_bytes: of text; a longer prompt is keyed as text.
        max_waiting: prompts at the threads at once, those that nobody waits for any more included.
        timeout_s: for one prompt, waiting for a thread included.
    """

    max_bytes: int = 256 * 1024
    max_waiting: int = 64
    timeout_s: float = 1.0


Told = Callable[[str, str, float], None]
"""(pool, outcome, seconds) of each prompt."""


class _Work:
    """One prompt at the threads. What is abandoned is passed over there, and counts until then: a thread that
    hangs must not let a queue grow behind it."""

    __slots__ = ("_make", "abandoned")

    def __init__(self, make: Callable[[], tuple[int, ...]]) -> None:
        self._make = make
        self.abandoned = False

    def __call__(self) -> tuple[int, ...]:
        if self.abandoned:
            raise NotRendered("nobody waits for it any more")
        return self._make()


class Tokenizers:
    """Makes token ids of prompts for the pools that have a tokenizer and keep prefixes.

    State: how many prompts are at the threads.
    """

    def __init__(
        self,
        by_pool: Mapping[str, Tokenizer],
        threads: Executor,
        bounds: TokenizerBounds,
        now: Callable[[], float],
        told: Told,
    ) -> None:
        self._by_pool = dict(by_pool)
        self._threads = threads
        self._bounds = bounds
        self._now = now
        self._told = told
        self._working = 0

    def serves(self, pool: str) -> bool:
        """Whether prompts for a pool of this name become token ids."""
        return pool in self._by_pool

    async def ids(
        self, key: PromptKey, api: Api, size: PromptSize, dispatchers: Iterable[Dispatcher]
    ) -> tuple[int, ...] | None:
        """Token ids of the first prompt of a call, for the first of these pools that has use for them.

        None where nobody has, and where only the engine can tell.
        """
        pool = self._pool_of(dispatchers)
        if pool is None or api not in _RENDERED or size.tokens is not None:
            return None
        began = self._now()
        outcome, ids = await self._made(pool, key, api, size)
        self._told(pool, outcome, self._now() - began)
        return ids

    def close(self) -> None:
        """Lets go of the threads; what they still do is for nobody."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _pool_of(self, dispatchers: Iterable[Dispatcher]) -> str | None:
        for dispatcher in dispatchers:
            pool = dispatcher.pool
            if pool.chooser.prefixes is not None and pool.rules.name in self._by_pool:
                return pool.rules.name
        return None

    async def _made(
        self, pool: str, key: PromptKey, api: Api, size: PromptSize
    ) -> tuple[str, tuple[int, ...] | None]:
        """One word for what came of it, and the ids."""
        bounds = self._bounds
        if size.media_parts:
            return "media", None
        if size.text_bytes > bounds.max_bytes:
            return "too_long", None
        if self._working >= bounds.max_waiting:
            return "busy", None
        work = _Work(partial(self._by_pool[pool].ids, api, key.fields()))
        made = asyncio.wrap_future(self._threads.submit(work))
        self._working += 1
        made.add_done_callback(self._done)
        try:
            async with asyncio.timeout(bounds.timeout_s):
                return "tokenized", await asyncio.shield(made)
        except NotRendered as error:
            log.debug("a prompt for pool %s is keyed as text: %s", pool, error)
            return "not_rendered", None
        except TimeoutError:
            return "timeout", None
        finally:
            work.abandoned = True

    def _done(self, _: object) -> None:
        self._working -= 1

    def __repr__(self) -> str:
        return f"<Tokenizers [{len(self._by_pool)} pools | {self._working} prompts under way]>"
