"""What the measuring engine writes, in the byte shapes of vLLM 0.32, made once before anything is measured.

Separate from the engine so that a test can hold the shapes to what the router's scanner reads.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence

import msgspec

MODEL = "bench"
ANSWER_ID = "chatcmpl-b0adde1ebd87f639"
PROMPT_TOKENS = 19

_CREATED = 1_795_973_970
_FINGERPRINT = "vllm-0.32.0-16d237ed"
_encode = msgspec.json.Encoder().encode

_WORDS = (" the", " of", " and", " to", " in", " that", " is", " was", " for", " it", " with", " as")
_HISTOGRAMS = (
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_inference_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "request_prompt_tokens",
    "request_generation_tokens",
    "request_max_num_generation_tokens",
    "request_params_n",
    "request_params_max_tokens",
    "iteration_tokens_total",
)
_BUCKETS = tuple(0.001 * 2**power for power in range(24))


def answer(status: bytes, content_type: bytes, body: bytes) -> bytes:
    """A whole answer, head and body."""
    return b"HTTP/1.1 %b\r\ndate: Sun, 29 Nov 2026 17:10:45 GMT\r\nserver: uvicorn\r\n" % status + (
        b"content-length: %d\r\ncontent-type: %b\r\n\r\n%b" % (len(body), content_type, body)
    )


class Leg(enum.StrEnum):
    """What a request asks of an engine: all of it, or one side of a split."""

    WHOLE = "whole"
    PREFILL = "prefill"
    DECODE = "decode"


HANDLE = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [[4, 5]],
    "remote_engine_id": "prefill-0",
    "remote_request_id": "chatcmpl-b0adde1ebd87f639-9abedd21",
    "remote_host": "127.0.0.1",
    "remote_port": 25_600,
    "tp_size": 1,
    "dcp_size": 1,
    "pp_size": 1,
    "remote_num_tokens": PROMPT_TOKENS,
    "remote_blocks_expiry_time": None,
    "transfer_mode": "pull",
    "remote_prefill_cached_tokens": 0,
}
"""What vLLM's NIXL connector says of KV that it keeps, and what a decode leg brings."""

ASK_HANDLE = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
"""What a prefill leg brings."""


def whole_chat() -> bytes:
    """A chat answer with a body of some 700 bytes."""
    return _chat("".join(_WORDS).strip(), len(_WORDS), None)


def prefilled_chat() -> bytes:
    """The answer to a prefill leg: one token, and where the KV is."""
    return _chat(_WORDS[0], 1, HANDLE)


def legs(counts: Mapping[Leg, int]) -> bytes:
    """The answer to /legs."""
    return answer(b"200 OK", b"application/json", _encode(counts))


def _chat(text: str, tokens: int, handle: Mapping[str, object] | None) -> bytes:
    message = {
        "role": "assistant",
        "content": text,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        "reasoning": None,
    }
    choice = {
        "index": 0,
        "message": message,
        "logprobs": None,
        "finish_reason": "length",
        "stop_reason": None,
        "token_ids": None,
        "routed_experts": None,
    }
    body = {
        "id": ANSWER_ID,
        "object": "chat.completion",
        "created": _CREATED,
        "model": MODEL,
        "choices": [choice],
        "service_tier": None,
        "system_fingerprint": _FINGERPRINT,
        "usage": _usage(tokens),
        "prompt_logprobs": None,
        "prompt_token_ids": None,
        "kv_transfer_params": handle,
    }
    return answer(b"200 OK", b"application/json", _encode(body))


def models() -> bytes:
    """The answer to /v1/models."""
    model = {
        "id": MODEL,
        "object": "model",
        "created": _CREATED,
        "owned_by": "vllm",
        "root": MODEL,
        "parent": None,
        "max_model_len": 131_072,
        "permission": [],
    }
    return answer(b"200 OK", b"application/json", _encode({"object": "list", "data": [model]}))


def metrics() -> bytes:
    """An exposition of the size that vLLM's has, with the lines that routers look for."""
    labels = f'{{engine="0",model_name="{MODEL}"}}'
    lines = [
        f"vllm:num_requests_running{labels} 0.0",
        f"vllm:num_requests_waiting{labels} 0.0",
        f"vllm:kv_cache_usage_perc{labels} 0.1",
        f"vllm:prompt_tokens_total{labels} 1000.0",
        f"vllm:generation_tokens_total{labels} 1000.0",
        'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="20000"} 1.0',
        *_histogram_lines(),
    ]
    return answer(b"200 OK", b"text/plain; version=0.0.4; charset=utf-8", "\n".join(lines).encode() + b"\n")


def stream_head() -> bytes:
    """The head of an event stream."""
    return (
        b"HTTP/1.1 200 OK\r\ndate: Sun, 29 Nov 2026 17:10:45 GMT\r\nserver: uvicorn\r\n"
        b"content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
    )


def chunked(event: bytes) -> bytes:
    """One event as one chunk of the transfer coding."""
    return b"%x\r\n%b\r\n" % (len(event), event)


def opening_event() -> bytes:
    """The event that names the role and holds no token."""
    delta = {"role": "assistant", "content": ""}
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
    return _event([choice], {"prompt_token_ids": None, "prompt_text": None})


def token_events() -> Sequence[bytes]:
    """Some events of one token each, to be sent by turns."""
    return tuple(_event([_token(word, {"finish_reason": None})]) for word in _WORDS)


def last_event() -> bytes:
    """The last token, with the reason of the end."""
    return _event([_token(".", {"finish_reason": "length", "stop_reason": None})])


def usage_event(completion_tokens: int) -> bytes:
    """The event that follows when the request asked for usage."""
    return _event([], {"usage": _usage(completion_tokens), "system_fingerprint": _FINGERPRINT})


DONE = b"data: [DONE]\n\n"


def _token(text: str, finish: Mapping[str, object]) -> dict[str, object]:
    return {"index": 0, "delta": {"content": text}, "logprobs": None, **finish, "token_ids": None}


def _event(choices: Sequence[object], rest: Mapping[str, object] | None = None) -> bytes:
    chunk = {"id": ANSWER_ID, "object": "chat.completion.chunk", "created": _CREATED, "model": MODEL}
    return b"data: " + _encode({**chunk, "choices": choices, **(rest or {})}) + b"\n\n"


def _usage(completion_tokens: int) -> dict[str, object]:
    return {
        "prompt_tokens": PROMPT_TOKENS,
        "total_tokens": PROMPT_TOKENS + completion_tokens,
        "completion_tokens": completion_tokens,
        "prompt_tokens_details": {"cached_tokens": 0, "created_cache_tokens": 0},
    }


def _histogram_lines() -> Iterator[str]:
    for name in _HISTOGRAMS:
        yield f"# HELP vllm:{name} Histogram of what its name says."
        yield f"# TYPE vllm:{name} histogram"
        for bound in _BUCKETS:
            yield f'vllm:{name}_bucket{{engine="0",le="{bound}",model_name="{MODEL}"}} 1000.0'
        yield f'vllm:{name}_bucket{{engine="0",le="+Inf",model_name="{MODEL}"}} 1000.0'
        yield f'vllm:{name}_count{{engine="0",model_name="{MODEL}"}} 1000.0'
        yield f'vllm:{name}_sum{{engine="0",model_name="{MODEL}"}} 1000.0'
