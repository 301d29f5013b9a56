"""What the probes ask a prefill/decode pair: requests that are split, and those that one engine serves whole.

The prompts fill several blocks of KV, since of a prompt within one block nothing can be handed over.
"""

from __future__ import annotations

from typing import Any

from tests.real.vllm import MODEL_NAME, chat, completion
from tests.real.vllm_bodies import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from tests.real.wire import Answer

PROMPT = "The quick brown fox jumps over the lazy dog, and a packed index tells where. " * 2
_TURNS: list[dict[str, Any]] = [
    {"role": "system", "content": "Answer shortly."},
    {"role": "user", "content": PROMPT},
]
_COMMON: dict[str, Any] = {"model": MODEL_NAME, "temperature": 0}
_RESPONSE: dict[str, Any] = {**_COMMON, "input": PROMPT, "max_output_tokens": 12}
_MESSAGE: dict[str, Any] = {**_COMMON, "messages": _TURNS[1:], "max_tokens": 12}
_USAGE: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}

SPLIT: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, chat(messages=_TURNS)),
    "chat, the newer bound": (
        CHAT,
        {**_COMMON, "messages": _TURNS, "max_completion_tokens": 9, "max_tokens": 5},
    ),
    "chat, at least so many": (CHAT, chat(messages=_TURNS, min_tokens=20)),
    "chat, log probabilities": (CHAT, chat(messages=_TURNS, logprobs=True, top_logprobs=2)),
    "chat, sampled": (CHAT, chat(messages=_TURNS, temperature=1, seed=7)),
    "chat, penalties": (CHAT, chat(messages=_TURNS, presence_penalty=1.5, repetition_penalty=1.2)),
    "chat, token ids": (CHAT, chat(messages=_TURNS, return_token_ids=True)),
    "chat, JSON": (CHAT, chat(messages=_TURNS, response_format={"type": "json_object"})),
    "chat, salted": (CHAT, chat(messages=_TURNS, cache_salt="of a tenant")),
    "completion": (COMPLETIONS, completion(PROMPT)),
    "completion, prompt of ids": (COMPLETIONS, completion(list(PROMPT.encode()))),
    "completion, a list of one prompt": (COMPLETIONS, completion([PROMPT])),
    "completion, log probabilities": (COMPLETIONS, completion(PROMPT, logprobs=2)),
    "completion, two tokens": (COMPLETIONS, completion(PROMPT, max_tokens=2)),
    "completion, one block and a token": (COMPLETIONS, completion(PROMPT[:33])),
    "completion, whole blocks": (COMPLETIONS, completion(PROMPT[:64])),
    "completion, less than a block": (COMPLETIONS, completion(PROMPT[:20])),
    "response": (RESPONSES, _RESPONSE),
    "message": (MESSAGES, _MESSAGE),
}
"""Whole answers. Of each of them the decode engine fetches the prompt's KV."""

STREAMED: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, chat(messages=_TURNS, stream=True)),
    "chat, usage": (CHAT, chat(messages=_TURNS, **_USAGE)),
    "chat, log probabilities": (CHAT, chat(messages=_TURNS, logprobs=True, top_logprobs=2, **_USAGE)),
    "chat, sampled": (CHAT, chat(messages=_TURNS, temperature=1, seed=7, **_USAGE)),
    "completion, usage": (COMPLETIONS, completion(PROMPT, **_USAGE)),
    "response": (RESPONSES, {**_RESPONSE, "stream": True}),
    "message": (MESSAGES, {**_MESSAGE, "stream": True}),
}

ONE_TOKEN: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, chat(messages=_TURNS, max_tokens=1)),
    "chat, streamed": (CHAT, chat(messages=_TURNS, max_tokens=1, **_USAGE)),
    "completion": (COMPLETIONS, completion(PROMPT, max_tokens=1)),
    "response": (RESPONSES, {**_RESPONSE, "max_output_tokens": 1}),
    "message": (MESSAGES, {**_MESSAGE, "max_tokens": 1}),
}
"""Whoever prefills these has the whole answer."""

ONE_ENGINE: dict[str, tuple[str, dict[str, Any]]] = {
    "chat, two choices": (CHAT, chat(messages=_TURNS, n=2, temperature=1, seed=7)),
    "chat, two choices, streamed": (CHAT, chat(messages=_TURNS, n=2, temperature=1, seed=7, **_USAGE)),
    "completion, two prompts": (COMPLETIONS, completion([PROMPT, PROMPT[::-1]])),
    "completion, two prompts of ids": (COMPLETIONS, completion([list(PROMPT.encode()), [72, 101]])),
    "completion, log probabilities of the prompt": (COMPLETIONS, completion(PROMPT, prompt_logprobs=1)),
    "completion, echo": (COMPLETIONS, completion(PROMPT, echo=True)),
    "completion, echo, streamed": (COMPLETIONS, completion(PROMPT, echo=True, **_USAGE)),
    "completion, echo with log probabilities": (COMPLETIONS, completion(PROMPT, echo=True, logprobs=2)),
}
"""Several sequences would read one handle, or the decode engine would compute the prompt itself."""


def streamed_facts(answer: Answer) -> dict[str, Any]:
    """What a stream of any of the four APIs says, however it is cut into events."""
    facts: dict[str, Any] = {"texts": {}, "logprobs": {}, "ends": {}, "usage": None, "done": False}
    for event in answer.events:
        if event == "[DONE]":
            facts["done"] = True
        elif "choices" in event:
            _of_choices(event, facts)
        else:
            _of_typed(event, facts)
    facts["usage"] = _usage(facts["usage"])
    return facts


def _of_choices(event: dict[str, Any], facts: dict[str, Any]) -> None:
    facts["usage"] = event.get("usage") or facts["usage"]
    for choice in event["choices"]:
        index = choice["index"]
        text = choice.get("text") or choice.get("delta", {}).get("content") or ""
        facts["texts"][index] = facts["texts"].get(index, "") + text
        facts["ends"][index] = choice.get("finish_reason")
        facts["logprobs"].setdefault(index, []).extend((choice.get("logprobs") or {}).get("content") or [])


def _of_typed(event: dict[str, Any], facts: dict[str, Any]) -> None:
    """Of Messages and Responses, whose events have names."""
    kind: str = event["type"]
    delta: Any = event.get("delta")
    if kind in ("response.output_text.delta", "content_block_delta"):
        facts["texts"][0] = facts["texts"].get(0, "") + (delta if isinstance(delta, str) else delta["text"])
    if kind == "message_delta":
        facts["ends"][0], facts["usage"] = delta["stop_reason"], event["usage"]
    if kind == "response.completed":
        facts["ends"][0], facts["usage"] = event["response"]["status"], event["response"]["usage"]
    facts["done"] = facts["done"] or kind in ("message_stop", "response.completed")


def _usage(usage: Any) -> Any:
    """Without how much of the prompt an engine has put into its own cache: a decode engine computes none of
    it, and says 0. Messages count that apart from the rest of the prompt; here it is one sum."""
    if not isinstance(usage, dict):
        return usage
    found = {key: _usage(inner) for key, inner in usage.items()}
    created = found.pop("cache_creation_input_tokens", None)
    if created is not None:
        found["input_tokens"] += created
    for name in ("created_cache_tokens", "cache_write_tokens"):
        found.pop(name, None)
    return found


def rounded(value: Any) -> Any:
    """The same with log probabilities to four places: two engines add in another order."""
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [rounded(inner) for inner in value]
    return round(value, 4) + 0.0 if isinstance(value, float) else value


_OF_THE_ENGINE = frozenset({"id", "created", "created_at", "completed_at", "system_fingerprint"})
"""Names and times. The fingerprint is that of the engine's settings, of which its role is one."""


def comparable(answer: Answer) -> Any:
    """A whole answer without what is of its engine, log probabilities rounded."""
    found = _without_engine(answer.json())
    found["usage"] = _usage(found["usage"])
    return rounded(found)


def _without_engine(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_engine(inner) for key, inner in value.items() if key not in _OF_THE_ENGINE}
    return [_without_engine(inner) for inner in value] if isinstance(value, list) else value
