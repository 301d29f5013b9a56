"""The mock pair against the real one: the same keys and statuses on both legs, and the same things counted.

Both are asked directly, as a proxy asks them. Prompts are token ids, since the two have other tokenizers.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.real.install import ROOT
from tests.real.nixl import DECODE_SEQUENCES, FREED_S, LEASE_S, Disaggregated
from tests.real.nixl_bodies import PROMPT, SPLIT, STREAMED
from tests.real.processes import environment, free_port, until
from tests.real.shapes import answer_shape
from tests.real.stage import Engine
from tests.real.vllm import (
    BLOCK_TOKENS,
    CONTEXT_TOKENS,
    KV_BLOCKS,
    MAX_SEQUENCES,
    MODEL_NAME,
    chat,
    completion,
)
from tests.real.vllm_bodies import CHAT, COMPLETIONS
from tests.real.wire import Answer, Exchange, ask

pytestmark = pytest.mark.timeout(600)
IDS = list(PROMPT.encode())[:100]
WANTED = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
"""Asks a prefill engine to keep its KV and to name it."""
_COUNTED = re.compile(
    r"vllm:(external_prefix_cache_|prefix_cache_|prompt_tokens|generation_tokens_total|request_success|"
    r"nixl_num_(failed|kv|notif)|nixl_\w+_count|num_preemptions)\w*$"
)
_SAMPLE = re.compile(r"^([^{\s]+)(?:\{(.*)\})?\s+(\S+)$")
_OF_ALL = re.compile(r'(engine|model_name)="[^"]*",?')


@dataclass(frozen=True, slots=True)
class Legs:
    """A prefill and a decode engine, real or not, and what a proxy does with them."""

    prefill: Engine
    decode: Engine

    def prefilled(self, path: str, body: Mapping[str, Any], **fields: Any) -> Answer:
        """The prefill leg of a client's request."""
        bound = next(
            (name for name in ("max_output_tokens", "max_completion_tokens") if name in body), "max_tokens"
        )
        dropped = ("stream_options", "min_tokens")
        kept = {key: value for key, value in body.items() if key not in dropped}
        leg = {**kept, bound: 1, "stream": False, "kv_transfer_params": WANTED, **fields}
        return ask(self.prefill.port, "POST", path, leg, {"x-request-id": "leg"}, timeout_s=120.0)

    def decoded(self, path: str, body: Mapping[str, Any], handle: Any, **fields: Any) -> Answer:
        """The decode leg."""
        leg = {**body, "kv_transfer_params": handle, **fields}
        return ask(self.decode.port, "POST", path, leg, {"x-request-id": "leg"}, timeout_s=120.0)

    def handle(self, prompt: Any = tuple(IDS)) -> dict[str, Any]:
        answer = self.prefilled(COMPLETIONS, completion(list(prompt)))
        found: dict[str, Any] = answer.json()["kv_transfer_params"]
        return found

    def forget_prompts(self) -> None:
        for engine in (self.prefill, self.decode):
            assert ask(engine.port, "POST", "/reset_prefix_cache").status == 200

    def counters(self) -> dict[str, float]:
        """What both have counted that depends on no clock and no model."""
        return {
            f"{side} {name}": number
            for side, engine in (("prefill", self.prefill), ("decode", self.decode))
            for name, number in _counters(engine.metrics()).items()
        }


def _counters(exposition: bytes) -> dict[str, float]:
    found = {}
    for line in exposition.decode().splitlines():
        sample = _SAMPLE.match(line)
        if sample is not None and _COUNTED.match(sample[1]) and "_created" not in sample[1]:
            found[f"{sample[1]}{{{_OF_ALL.sub('', sample[2] or '').strip(',')}}}"] = float(sample[3])
    return found


@pytest.fixture(scope="module")
def mock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Legs]:
    """Two mocks with the flags of the real engines, ten times as fast as their GPU."""
    directory = tmp_path_factory.mktemp("mock-pair")
    engines: list[Engine] = []
    try:
        engines += [
            _mock("prefill", MAX_SEQUENCES, directory),
            _mock("decode", DECODE_SEQUENCES, directory),
        ]
        for engine in engines:
            engine.until_healthy("/health", 60.0)
        yield Legs(*engines)
    finally:
        for engine in engines:
            engine.stop()


def _mock(role: str, sequences: int, directory: Path) -> Engine:
    port = free_port()
    flags = {
        "port": port,
        "role": role,
        "served-model-name": MODEL_NAME,
        "max-model-len": CONTEXT_TOKENS,
        "block-size": BLOCK_TOKENS,
        "kv-tokens": (KV_BLOCKS - 1) * BLOCK_TOKENS,
        "max-num-seqs": sequences,
        "kv-lease-s": LEASE_S,
        "time-scale": 0.1,
    }
    argv = [str(ROOT / ".venv/bin/pointsman"), "mock", "--enable-request-id-headers"]
    argv += ["--no-enable-auto-tool-choice"]
    argv += [word for flag, value in flags.items() for word in (f"--{flag}", str(value))]
    return Engine(argv, port, directory / f"mock-{role}.log", environment())


@pytest.fixture(scope="module")
def real(nixl: Disaggregated) -> Legs:
    return Legs(nixl.prefill, nixl.decode)


@pytest.fixture(autouse=True)
def cold(real: Legs, mock: Legs) -> None:
    """Nothing is held and nothing is cached before a test."""
    for legs in (real, mock):
        _until_idle(legs)
        legs.forget_prompts()


def _until_idle(legs: Legs) -> None:
    def idle() -> bool:
        stats = [engine.stats() for engine in (legs.prefill, legs.decode)]
        return all((one.running, one.waiting, one.kv_usage) == (0, 0, 0.0) for one in stats)

    until(idle, LEASE_S + FREED_S, "idle engines")


def _wake(engine: Engine) -> None:
    """vLLM's core sleeps while it holds nothing, and hears what it was told when it wakes up."""
    assert ask(engine.port, "POST", COMPLETIONS, completion([1, 2, 3], max_tokens=2)).status == 200


# --- what they answer ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SPLIT)
def test_both_legs_have_the_keys_of_vllm(real: Legs, mock: Legs, name: str) -> None:
    path, body = SPLIT[name]
    prefilled = [legs.prefilled(path, body) for legs in (mock, real)]
    assert answer_shape(prefilled[0]) == answer_shape(prefilled[1])
    decoded = [
        legs.decoded(path, body, answer.json()["kv_transfer_params"])
        for legs, answer in zip((mock, real), prefilled, strict=True)
    ]
    assert answer_shape(decoded[0]) == answer_shape(decoded[1])


@pytest.mark.parametrize("name", STREAMED)
def test_a_decode_leg_streams_as_vllm_does(real: Legs, mock: Legs, name: str) -> None:
    path, body = STREAMED[name]
    shapes = []
    for legs in (mock, real):
        handle = legs.prefilled(path, body).json()["kv_transfer_params"]
        shapes.append(answer_shape(legs.decoded(path, body, handle)))
    assert shapes[0] == shapes[1]


ODD_PREFILLS: dict[str, dict[str, Any]] = {
    "streamed": {"stream": True},
    "stream options": {"stream_options": {"include_usage": True}},
    "at least five tokens": {"min_tokens": 5},
    "two choices": {"n": 2, "temperature": 1},
    "two prompts": {"prompt": [IDS, IDS[::-1]]},
    "nothing to keep": {"kv_transfer_params": {"do_remote_decode": False, "do_remote_prefill": False}},
    "null": {"kv_transfer_params": None},
    "no object": {"kv_transfer_params": [1]},
    "log probabilities of the prompt": {"prompt_logprobs": 1},
    "ids of the prompt": {"return_token_ids": True},
}


@pytest.mark.parametrize("name", ODD_PREFILLS)
def test_an_odd_prefill_leg_is_answered_as_by_vllm(real: Legs, mock: Legs, name: str) -> None:
    answers = [legs.prefilled(COMPLETIONS, completion(IDS), **ODD_PREFILLS[name]) for legs in (mock, real)]
    assert answer_shape(answers[0]) == answer_shape(answers[1])


Spoil = Callable[[dict[str, Any]], dict[str, Any]]
ODD_HANDLES: dict[str, Spoil] = {
    # One that lacks a key is not asked for: vLLM waits for ever, and its core ends when the client leaves.
    "no port": lambda handle: {**handle, "remote_port": None},
    "a port of nobody": lambda handle: {**handle, "remote_port": 1, "remote_engine_id": "never-seen"},
    "ids of the prompt": lambda handle: {**handle, "prompt_token_ids": IDS},
    "ids that are none": lambda handle: {**handle, "prompt_token_ids": ["a"]},
    "a key more": lambda handle: {**handle, "of_the_next_release": 1},
}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("name", ODD_HANDLES)
def test_an_odd_handle_is_answered_as_by_vllm(real: Legs, mock: Legs, name: str, streamed: bool) -> None:
    shapes, took_s = [], []
    for legs in (mock, real):
        handle = ODD_HANDLES[name](legs.handle())
        began = time.monotonic()
        shapes.append(answer_shape(legs.decoded(COMPLETIONS, completion(IDS, stream=streamed), handle)))
        took_s.append(time.monotonic() - began)
    assert shapes[0] == shapes[1]
    assert (took_s[0] > 4.5) == (name == "a port of nobody")
    assert took_s[1] > 4.5 or name != "a port of nobody"


ODD_DECODES: dict[str, dict[str, Any]] = {
    "too many tokens": {"max_tokens": 2**31 - 1},
    "unknown model": {"model": "nope"},
    "out of range": {"temperature": -1},
    "too long": {"prompt": [1] * CONTEXT_TOKENS},
    "two choices": {"n": 2, "temperature": 1, "seed": 7},
    "log probabilities of the prompt": {"prompt_logprobs": 1},
    "echo": {"echo": True},
    "another prompt": {"prompt": IDS[::-1]},
}


@pytest.mark.parametrize("name", ODD_DECODES)
def test_an_odd_decode_leg_is_answered_and_counted_as_by_vllm(real: Legs, mock: Legs, name: str) -> None:
    def decode(legs: Legs) -> Any:
        return answer_shape(legs.decoded(COMPLETIONS, completion(IDS), legs.handle(), **ODD_DECODES[name]))

    _assert_alike(real, mock, decode)


# --- what they count ----------------------------------------------------------------------------------------


def _assert_alike(real: Legs, mock: Legs, do: Callable[[Legs], Any]) -> None:
    """Both return the same, and in the end have counted the same."""
    before = [legs.counters() for legs in (mock, real)]
    done = [do(legs) for legs in (mock, real)]
    assert done[0] == done[1]
    for legs in (mock, real):
        _until_idle(legs)  # what nobody has fetched is counted at the end of its lease
        _wake(legs.prefill)

    def gained() -> list[dict[str, float]]:
        after = [legs.counters() for legs in (mock, real)]
        return [_gained(*pair) for pair in zip(before, after, strict=True)]

    deadline = time.monotonic() + FREED_S  # counters may come after the answer
    while len({str(sorted(one.items())) for one in gained()}) > 1 and time.monotonic() < deadline:
        time.sleep(0.2)
    found = gained()
    assert found[0] == found[1]


def _gained(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    changes = {name: number - before.get(name, 0.0) for name, number in after.items()}
    return {name: change for name, change in sorted(changes.items()) if change}


def _split(legs: Legs, **fields: Any) -> int:
    return legs.decoded(COMPLETIONS, completion(IDS, max_tokens=3, **fields), legs.handle()).status


def test_a_hand_over_is_counted_as_by_vllm(real: Legs, mock: Legs) -> None:
    _assert_alike(real, mock, _split)


def test_a_second_hand_over_of_one_prompt_is_counted_as_by_vllm(real: Legs, mock: Legs) -> None:
    for legs in (real, mock):
        _split(legs)
    _assert_alike(real, mock, _split)


def test_a_handle_used_twice_is_counted_as_by_vllm(real: Legs, mock: Legs) -> None:
    def twice(legs: Legs) -> list[int]:
        handle = legs.handle()
        body = completion(IDS, max_tokens=3, ignore_eos=True)
        first = legs.decoded(COMPLETIONS, body, handle).status
        ask(legs.decode.port, "POST", "/reset_prefix_cache")
        return [first, legs.decoded(COMPLETIONS, body, handle).status]

    _assert_alike(real, mock, twice)


def test_a_peer_that_nobody_knows_is_counted_as_by_vllm(real: Legs, mock: Legs) -> None:
    def lost(legs: Legs) -> int:
        handle = {**legs.handle(), "remote_port": 1, "remote_engine_id": "never-seen-either"}
        return legs.decoded(COMPLETIONS, completion(IDS), handle).status

    _assert_alike(real, mock, lost)


def test_chat_hands_over_whole_blocks_as_vllm_does(real: Legs, mock: Legs) -> None:
    def shapes(legs: Legs) -> list[int]:
        found = legs.prefilled(COMPLETIONS, completion(IDS)).json()["kv_transfer_params"]
        return [len(group) for group in found["remote_block_ids"]] + [found["remote_num_tokens"]]

    _assert_alike(real, mock, shapes)


@pytest.mark.parametrize("name", ["streamed", "two choices", "two prompts"])
def test_what_an_odd_prefill_leg_strands_is_counted_as_by_vllm(real: Legs, mock: Legs, name: str) -> None:
    def strand(legs: Legs) -> float:
        legs.prefilled(COMPLETIONS, completion(IDS), **ODD_PREFILLS[name])
        held = legs.prefill.stats().kv_usage
        until(lambda: legs.prefill.stats().kv_usage == 0.0, LEASE_S + FREED_S, "the lease to have ended")
        return round(held or 0.0, 4)

    _assert_alike(real, mock, strand)


@pytest.mark.parametrize("streamed", [True, False])
def test_a_client_that_leaves_a_decode_is_counted_as_by_vllm(real: Legs, mock: Legs, streamed: bool) -> None:
    """Tokens are not compared: how many there were is a matter of time."""

    def leave(legs: Legs) -> float:
        handle, late = legs.handle(), "prefill vllm:nixl_num_notifications_after_expiry_total{}"
        before = legs.counters()[late]
        body = completion(IDS, max_tokens=1800, ignore_eos=True, stream=streamed)
        with Exchange(legs.decode.port, "POST", COMPLETIONS, {**body, "kv_transfer_params": handle}):
            until(lambda: legs.decode.stats().running == 1, 60.0, "a decode")
            until(lambda: legs.prefill.stats().kv_usage == 0.0, FREED_S, "the prefill engine to let go")
        until(lambda: legs.decode.stats().running == 0, FREED_S, "an idle engine")
        time.sleep(1.0)
        _wake(legs.prefill)
        return legs.counters()[late] - before

    assert leave(mock) == leave(real)


def test_the_mock_exports_every_metric_of_a_pair_with_its_labels(real: Legs, mock: Legs) -> None:
    for legs in (mock, real):
        _split(legs)
    for side in ("prefill", "decode"):
        assert _series(getattr(mock, side).metrics()) == _series(getattr(real, side).metrics())


def _series(exposition: bytes) -> dict[str, list[str]]:
    """Label names by metric."""
    found = {}
    for line in exposition.decode().splitlines():
        if not line.startswith("#"):
            found[re.split("[ {]", line)[0]] = sorted(re.findall(r'(\w+)="', line))
    return found


def test_cached_and_created_tokens_are_those_of_vllm(real: Legs, mock: Legs) -> None:
    """Of a whole request and of both legs, cold and warm; the prompts are as long as their templates make
    them, so only what is zero, and what is all whole blocks, can be compared."""

    def kinds(legs: Legs) -> list[str]:
        legs.forget_prompts()
        body = chat(PROMPT)
        whole = [ask(legs.prefill.port, "POST", CHAT, body) for _ in range(2)]
        legs.forget_prompts()
        prefilled = legs.prefilled(CHAT, body)
        decoded = legs.decoded(CHAT, body, prefilled.json()["kv_transfer_params"])
        return [_kind(answer.json()["usage"]) for answer in (*whole, prefilled, decoded)]

    assert kinds(mock) == kinds(real)


def _kind(usage: dict[str, Any]) -> str:
    details, words = usage["prompt_tokens_details"], []
    for name in ("cached_tokens", "created_cache_tokens"):
        count = details[name]
        whole = (usage["prompt_tokens"] - 1) // BLOCK_TOKENS * BLOCK_TOKENS
        words.append(f"{name}: {'none' if count is None else 'all' if count and count >= whole else count}")
    return ", ".join(words)
