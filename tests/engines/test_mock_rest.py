"""The routes that are asked for rarely: models, tokens, version, load, cache."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from router.virtual.clock import run
from tests.engines.mock_stage import CHAT, TEXT, stage

WIRE = Path(__file__).parent.parent / "wire"
CARD = [
    "id", "object", "created", "owned_by", "root", "parent", "max_model_len", "permission",
]  # fmt: skip


def test_the_model_list_has_one_entry_under_the_served_name() -> None:
    async def main() -> None:
        async with stage(served_model_name="house", max_model_len=512) as act:
            body = (await act.ask("/v1/models")).json()
            (card,) = body["data"]
            assert (list(body), list(card)) == (["object", "data"], CARD)
            assert (card["id"], card["max_model_len"], card["owned_by"]) == ("house", 512, "vllm")
            assert (await act.ask("/v1/completions", {**TEXT, "model": "house"})).json()["model"] == "house"

    run(main())


@settings(max_examples=20, deadline=None)
@given(st.text(max_size=40))
def test_detokenize_undoes_tokenize(text: str) -> None:
    async def main() -> None:
        async with stage() as act:
            tokens = (await act.ask("/tokenize", {"prompt": text})).json()
            assert tokens["count"] == len(tokens["tokens"]) == -(-len(text.encode()) // 4)
            assert (await act.ask("/detokenize", {"tokens": tokens["tokens"]})).json() == {"prompt": text}

    run(main())


def test_tokenize_counts_a_chat_as_its_answer_does() -> None:
    async def main() -> None:
        async with stage() as act:
            counted = (
                await act.ask("/tokenize", {"messages": CHAT["messages"], "return_token_strs": True})
            ).json()
            usage = (await act.ask("/v1/chat/completions", CHAT)).json()["usage"]
            assert counted["count"] == usage["prompt_tokens"]
            assert len(counted["token_strs"]) == counted["count"]
            assert (await act.ask("/tokenize", {})).status == 400
            assert (await act.ask("/detokenize", {"tokens": [2**40]})).status == 400
            assert (await act.ask("/tokenize", {"prompt": "x", "model": "nope"})).status == 404

    run(main())


def test_small_routes_answer_as_recorded() -> None:
    async def main() -> None:
        async with stage() as act:
            assert (await act.ask("/version")).body == b'{"version":"0.32.0"}'
            assert (await act.ask("/load")).body == b'{"server_load":0}'
            assert (await act.ask("/is_sleeping")).body == b'{"is_sleeping":false}'
            for path in ("/health", "/ping"):
                reply = await act.ask(path)
                assert (reply.status, reply.body) == (200, b"")

    run(main())


def test_load_counts_open_requests_when_asked_to() -> None:
    async def main() -> None:
        async with stage(enable_server_load_tracking=True) as act:
            asks = [asyncio.ensure_future(act.ask("/v1/completions", TEXT)) for _ in range(3)]
            await asyncio.sleep(0.01)
            assert json.loads((await act.ask("/load")).body) == {"server_load": 3}
            await asyncio.gather(*asks)

    run(main())


def test_the_prefix_cache_can_be_reset_when_nobody_holds_it() -> None:
    async def main() -> None:
        async with stage() as act:
            long = {"prompt": "word " * 400, "max_tokens": 2}
            working = asyncio.ensure_future(act.ask("/v1/completions", long))
            await asyncio.sleep(0.005)
            assert (await act.ask("/reset_prefix_cache", method="POST")).json() == {"success": False}
            await working
            assert (await act.ask("/reset_prefix_cache", method="POST")).json() == {"success": True}
            usage = (await act.ask("/v1/completions", long)).json()["usage"]
            assert usage["prompt_tokens_details"]["cached_tokens"] == 0

    run(main())


def test_lower_priority_values_run_first() -> None:
    async def main() -> None:
        async with stage(max_num_seqs=1, scheduling_policy="priority") as act:
            ended: list[int] = []

            async def ask(priority: int, headers: dict[str, str] | None = None) -> None:
                body = {**TEXT, "priority": priority}
                await act.ask("/v1/completions", body, headers)
                ended.append(priority)

            first = asyncio.ensure_future(act.ask("/v1/completions", {**TEXT, "max_tokens": 50}))
            await asyncio.sleep(0.01)
            waiting = [asyncio.ensure_future(ask(priority)) for priority in (10, 5, -1)]
            waiting.append(asyncio.ensure_future(ask(99, {"x-vllm-priority": "-7"})))
            await asyncio.gather(first, *waiting)
            assert ended == [99, -1, 5, 10]

    run(main())
