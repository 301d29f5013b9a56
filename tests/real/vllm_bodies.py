"""What the probes ask vLLM, by API, and the words of an answer."""

from __future__ import annotations

from typing import Any

from tests.real.vllm import MODEL_NAME, chat, completion
from tests.real.wire import Answer

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
USAGE: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
TOO_LONG = "x" * 9000
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
RESPONSE: dict[str, Any] = {"model": MODEL_NAME, "input": "hello", "max_output_tokens": 8, "temperature": 0}
MESSAGE: dict[str, Any] = {
    "model": MODEL_NAME,
    "max_tokens": 8,
    "temperature": 0,
    "messages": [{"role": "user", "content": "hello"}],
}

WHOLE: dict[str, tuple[str, Any]] = {
    "chat": (CHAT, chat()),
    "chat, two choices": (CHAT, chat(n=2, temperature=1, seed=7)),
    "chat, log probabilities": (CHAT, chat(logprobs=True, top_logprobs=2)),
    "chat, token ids": (CHAT, chat(return_token_ids=True)),
    "chat, JSON": (CHAT, chat(response_format={"type": "json_object"})),
    "completion": (COMPLETIONS, completion()),
    "completion, prompt of ids": (COMPLETIONS, completion([72, 101, 108])),
    "completion, two prompts": (COMPLETIONS, completion(["one", "two"])),
    "completion, two prompts of ids": (COMPLETIONS, completion([[72, 101], [108]])),
    "completion, echo": (COMPLETIONS, completion(echo=True)),
    "completion, echo of ids": (COMPLETIONS, completion(echo=True, return_token_ids=True)),
    "completion, echo with log probabilities": (COMPLETIONS, completion(echo=True, logprobs=2)),
    "completion, log probabilities": (COMPLETIONS, completion(logprobs=2)),
    "completion, token ids": (COMPLETIONS, completion(return_token_ids=True)),
    "response": (RESPONSES, RESPONSE),
    "message": (MESSAGES, MESSAGE),
    "tokens of a message": (f"{MESSAGES}/count_tokens", {k: MESSAGE[k] for k in ("model", "messages")}),
    "tokenize": ("/tokenize", {"model": MODEL_NAME, "prompt": "hello"}),
    "tokenize messages": (
        "/tokenize",
        {"model": MODEL_NAME, "messages": MESSAGE["messages"], "return_token_strs": True},
    ),
    "detokenize": ("/detokenize", {"model": MODEL_NAME, "tokens": [104, 105]}),
}

REFUSED: dict[str, tuple[str, Any]] = {
    "chat too long": (CHAT, chat(TOO_LONG)),
    "chat too long, streamed": (CHAT, chat(TOO_LONG, stream=True)),
    "completion too long": (COMPLETIONS, completion(TOO_LONG)),
    "message too long": (MESSAGES, {**MESSAGE, "messages": [{"role": "user", "content": TOO_LONG}]}),
    "response too long": (RESPONSES, {**RESPONSE, "input": TOO_LONG}),
    "too many output tokens": (CHAT, chat(max_tokens=5000)),
    "no messages": (CHAT, {"model": MODEL_NAME}),
    "empty messages": (CHAT, chat(messages=[])),
    "no prompt": (COMPLETIONS, {"model": MODEL_NAME}),
    "empty prompt": (COMPLETIONS, completion([])),
    "wrong type": (CHAT, chat(temperature="hot")),
    "out of range": (CHAT, chat(temperature=-1)),
    "no choices": (CHAT, chat(n=0)),
    "two greedy choices": (CHAT, chat(n=2)),
    "stream options without a stream": (CHAT, chat(stream_options={"include_usage": True})),
    "fewer tokens than the least": (CHAT, chat(min_tokens=30)),
    "tools that it cannot choose": (CHAT, chat(tools=TOOLS)),
    "message without tokens": (MESSAGES, {**MESSAGE, "max_tokens": 0}),
    "no messages, Messages": (MESSAGES, {"model": MODEL_NAME}),
    "no input, Responses": (RESPONSES, {"model": MODEL_NAME}),
}

STREAMED: dict[str, tuple[str, Any]] = {
    "chat": (CHAT, chat(stream=True)),
    "chat, usage declined": (CHAT, chat(stream=True, stream_options={"include_usage": False})),
    "chat, usage": (CHAT, chat(**USAGE)),
    "chat, usage in every event": (
        CHAT,
        chat(stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True}),
    ),
    "chat, two choices": (CHAT, chat(n=2, temperature=1, seed=7, **USAGE)),
    "chat, log probabilities": (CHAT, chat(logprobs=True, top_logprobs=2, **USAGE)),
    "chat, token ids": (CHAT, chat(return_token_ids=True, stream=True)),
    "completion": (COMPLETIONS, completion(stream=True)),
    "completion, usage": (COMPLETIONS, completion(**USAGE)),
    "completion, two prompts": (COMPLETIONS, completion(["one", "two"], **USAGE)),
    "completion, echo": (COMPLETIONS, completion(echo=True, logprobs=2, **USAGE)),
    "completion, token ids": (COMPLETIONS, completion(return_token_ids=True, **USAGE)),
    "response": (RESPONSES, {**RESPONSE, "stream": True}),
    "message": (MESSAGES, {**MESSAGE, "stream": True}),
}


def asks_usage(body: Any) -> bool:
    """Whether the client itself wants what the router would have asked for."""
    options = body.get("stream_options") or {}
    return bool(options.get("include_usage"))


def streamed_text(answer: Answer) -> str:
    """The text of choice 0 of a chat or completions stream."""
    choices = [choice for event in answer.events if event != "[DONE]" for choice in event["choices"]]
    first = [choice for choice in choices if choice["index"] == 0]
    return "".join(choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in first)
