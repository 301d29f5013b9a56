"""Tokenizing beside the loop: bounded in size, number and time, and never in the way of a request."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

from router.core.body import parse_body
from router.core.request import Api
from router.dispatch import Dispatcher
from router.tokenizer.conversation import NotRendered
from router.tokenizer.tokenizer import Tokenizer
from router.tokenizer.tokenizers import TokenizerBounds, Tokenizers
from router.virtual.clock import run
from tests.tokenizer.threads import Threads


class Letters:
    """An id per letter of the prompt; refuses what begins with a question mark."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def ids(self, api: Api, fields: dict[str, bytes]) -> tuple[int, ...]:
        prompt = json.loads(bytes(fields["prompt"]))
        self.asked.append(prompt)
        if prompt.startswith("?"):
            raise NotRendered("a question")
        return tuple(map(ord, prompt))


def pool(name: str, *, keeps: bool = True) -> Dispatcher:
    chooser = SimpleNamespace(prefixes=object() if keeps else None)
    return cast(
        Dispatcher, SimpleNamespace(pool=SimpleNamespace(chooser=chooser, rules=SimpleNamespace(name=name)))
    )


class Stage:
    def __init__(self, threads: Threads | None = None, **bounds: Any) -> None:
        self.threads = threads or Threads()
        self.told: list[tuple[str, str]] = []
        self.letters = Letters()
        self.tokenizers = Tokenizers(
            {"p": cast(Tokenizer, self.letters)},
            self.threads,
            TokenizerBounds(**bounds),
            lambda: asyncio.get_running_loop().time(),
            lambda pool, outcome, seconds: self.told.append((pool, outcome)),
        )

    async def ids(self, prompt: object, *pools: Dispatcher, api: Api = Api.COMPLETIONS) -> Any:
        body = parse_body(json.dumps({"model": "m", "prompt": prompt}).encode(), api)
        assert body.key is not None
        return await self.tokenizers.ids(body.key, api, body.size, pools or (pool("p"),))


def test_a_prompt_becomes_token_ids_for_a_pool_with_a_tokenizer() -> None:
    async def main() -> None:
        stage = Stage()
        assert await stage.ids("ab") == (97, 98)
        assert await stage.ids("ab", pool("other"), pool("p")) == (97, 98)
        assert stage.told == [("p", "tokenized")] * 2
        assert stage.tokenizers.serves("p")
        assert not stage.tokenizers.serves("other")
        assert repr(stage.tokenizers) == "<Tokenizers [1 pools | 0 prompts under way]>"

    run(main())


def test_who_has_no_use_for_token_ids_pays_nothing() -> None:
    async def main() -> None:
        stage = Stage()
        assert await stage.ids("ab", pool("other")) is None
        assert await stage.ids("ab", pool("p", keeps=False)) is None
        assert await stage.ids([1, 2]) is None  # they are known
        assert await stage.ids("ab", api=Api.OTHER) is None
        assert (stage.told, stage.threads.work) == ([], [])

    run(main())


def test_what_only_the_engine_can_tell_is_counted() -> None:
    async def main() -> None:
        stage = Stage(max_bytes=10)
        assert await stage.ids("?") is None
        assert await stage.ids("x" * 11) is None
        assert stage.told == [("p", "not_rendered"), ("p", "too_long")]

    run(main())


def test_no_request_waits_longer_than_its_time() -> None:
    async def main() -> None:
        stage, began = Stage(Threads(at_once=False)), asyncio.get_running_loop().time()
        assert await stage.ids("ab") is None
        assert asyncio.get_running_loop().time() - began == 1.0
        assert stage.told == [("p", "timeout")]
        assert "1 prompts" in repr(stage.tokenizers)
        stage.threads.go()
        await asyncio.sleep(0.1)
        assert "0 prompts" in repr(stage.tokenizers)

    run(main())


def test_no_more_prompts_wait_than_may() -> None:
    async def main() -> None:
        stage = Stage(Threads(at_once=False), max_waiting=2)
        waiting = [asyncio.ensure_future(stage.ids("ab")) for _ in range(2)]
        await asyncio.sleep(0)
        assert await stage.ids("ab") is None
        assert stage.told == [("p", "busy")]
        stage.threads.go()
        assert await asyncio.gather(*waiting) == [(97, 98)] * 2

    run(main())


def test_a_client_that_leaves_frees_its_place_once_a_thread_has_passed_it_over() -> None:
    """Threads that hang would otherwise have a queue without end before them."""

    async def main() -> None:
        stage = Stage(Threads(at_once=False), max_waiting=1)
        asked = asyncio.ensure_future(stage.ids("ab"))
        await asyncio.sleep(0)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        assert await stage.ids("cd") is None
        assert stage.told == [("p", "busy")]
        stage.threads.go()
        await asyncio.sleep(0.1)
        assert "0 prompts" in repr(stage.tokenizers)
        assert stage.letters.asked == []
        stage.tokenizers.close()
        assert stage.threads.down

    run(main())
