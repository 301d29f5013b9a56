"""The `usage` objects of vLLM's answers, in their recorded key order.

Separate because four APIs carry them, each with its own set of details.
"""

from __future__ import annotations


def stream_usage(prompt_tokens: int, completion_tokens: int) -> dict[str, object]:
    """Return the usage of a stream's last event, without details."""
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
    }


def continuous_usage(prompt_tokens: int, completion_tokens: int) -> dict[str, object]:
    """Return the usage that every event carries with `continuous_usage_stats`; counted per answer."""
    return {**stream_usage(prompt_tokens, completion_tokens), "completion_tokens_details": None}


def final_usage(
    prompt_tokens: int,
    completion_tokens: int,
    cached_tokens: int | None,
    *,
    created_cache_tokens: int | None = None,
) -> dict[str, object]:
    """Return the usage of a body; `cached_tokens` None means that details are not enabled."""
    details: dict[str, object] | None = None
    if cached_tokens is not None:
        details = {
            "cached_tokens": cached_tokens,
            "created_cache_tokens": created_cache_tokens,
            "multimodal_tokens": None,
        }
    return {
        **stream_usage(prompt_tokens, completion_tokens),
        "prompt_tokens_details": details,
        "completion_tokens_details": None,
    }
