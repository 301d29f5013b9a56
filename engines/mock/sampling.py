"""Checks of sampling parameters and lengths, with the statuses and messages of vLLM.

Separate because completions, chat, responses and messages share them. Messages that clients and other
routers match on (context length, max_tokens) keep the engine's wording.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engines.mock.ask import Sampling, Streaming
from engines.mock.errors import Refusal, bad_request
from engines.mock.fields import Fields
from engines.model.text import VOCABULARY_SIZE

MAX_STOP_STRINGS = 4
MAX_N = 16384
MAX_LOGPROBS = 20
MAX_SALT_CHARACTERS = 128


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request must fit into.

    Attributes:
        max_model_len: prompt and output together (tokens).
        default_max_tokens: output limit of a request that names none; None is all that is left.
        clip: a limit beyond the model's length is cut (vLLM) rather than refused (SGLang).
    """

    max_model_len: int
    default_max_tokens: int | None = None
    clip: bool = True


def check_prompt_length(prompts: Sequence[Sequence[int]], limits: Limits) -> None:
    """Refuse a prompt that leaves no room for one output token.

    Raises:
        Refusal: 400 naming `input_tokens`.
    """
    longest = max(len(prompt) for prompt in prompts)
    if longest < limits.max_model_len:
        return
    if not limits.clip:
        raise bad_request(
            f"The input ({longest} tokens) is longer than the model's context length "
            f"({limits.max_model_len} tokens)."
        )
    raise bad_request(
        f"This model's maximum context length is {limits.max_model_len} tokens. However, your prompt "
        f"contains {longest} input tokens. Shorten the prompt or use a model with a longer context. "
        f"(parameter=input_tokens, value={longest})",
        "input_tokens",
    )


def max_tokens(asked: int | None, prompts: Sequence[Sequence[int]], limits: Limits) -> int:
    """Return the output limit, clipped so that the longest prompt still fits beside it.

    Raises:
        Refusal: 400 naming `max_tokens`.
    """
    room = limits.max_model_len - max(len(prompt) for prompt in prompts)
    if asked is None:
        return min(limits.default_max_tokens or room, room)
    if asked < 1:
        raise bad_request(
            f"max_tokens must be at least 1, got {asked}. (parameter=max_tokens, value={asked})", "max_tokens"
        )
    if asked > limits.max_model_len:
        raise bad_request(
            f"max_tokens={asked} cannot be greater than max_model_len={limits.max_model_len}. "
            f"Please request fewer output tokens. (parameter=max_tokens, value={asked})",
            "max_tokens",
        )
    if asked > room and not limits.clip:
        total = limits.max_model_len - room + asked
        raise bad_request(
            f"Requested token count exceeds the model's maximum context length of {limits.max_model_len} "
            f"tokens. You requested a total of {total} tokens."
        )
    return min(asked, room)


def sampling(
    fields: Fields, limit: int, logprobs: int | None, script: tuple[int, ...] | None = None
) -> Sampling:
    """Read and check the sampling fields that all generation APIs share.

    Raises:
        Refusal: 400 for the first value out of its range.
    """
    _check_ranges(fields)
    min_tokens = fields.integer("min_tokens") or 0
    if min_tokens < 0:
        raise bad_request(f"min_tokens must be greater than or equal to 0, got {min_tokens}.")
    if min_tokens > limit:
        raise bad_request(f"min_tokens must be less than or equal to max_tokens={limit}, got {min_tokens}.")
    stop = tuple(fields.texts("stop"))
    if len(stop) > MAX_STOP_STRINGS:
        raise bad_request(f"stop holds {len(stop)} strings; at most {MAX_STOP_STRINGS} are allowed.", "stop")
    if any(not text for text in stop):
        raise bad_request("stop cannot contain an empty string.", "stop")
    if logprobs is not None and not 0 <= logprobs <= MAX_LOGPROBS:
        raise bad_request(
            f"logprobs must be between 0 and {MAX_LOGPROBS}, got {logprobs}. "
            f"(parameter=logprobs, value={logprobs})",
            "logprobs",
        )
    return Sampling(
        max_tokens=limit,
        min_tokens=min_tokens,
        ignore_eos=fields.flag("ignore_eos"),
        seed=fields.integer("seed"),
        stop=stop,
        stop_token_ids=frozenset(fields.integers("stop_token_ids")),
        include_stop=fields.flag("include_stop_str_in_output"),
        logprobs=logprobs,
        script=script,
    )


def answers_per_prompt(fields: Fields) -> int:
    """Return `n`.

    Raises:
        Refusal: 400 when it is out of range, or above 1 with greedy sampling.
    """
    n = fields.integer("n")
    if n is None:
        return 1
    if n < 1:
        raise bad_request(f"n must be at least 1, got {n}.")
    if n > MAX_N:
        raise bad_request(f"n must be between 1 and {MAX_N}, got {n}. (parameter=n, value={n})", "n")
    if n > 1 and fields.number("temperature") == 0.0:
        raise bad_request(f"n must be 1 when using greedy sampling, got {n}.")
    return n


def streaming(fields: Fields) -> Streaming:
    """Read `stream` and its options.

    Raises:
        Refusal: 400 for stream_options without stream.
    """
    stream = fields.flag("stream")
    options = fields.object("stream_options")
    if options is None:
        return Streaming(stream=stream, interval=_interval(fields))
    if not stream:
        raise bad_request("Stream options can only be defined when `stream=True`.", "stream_options")
    include = options.flag("include_usage")
    return Streaming(
        stream=True,
        include_usage=include,
        continuous_usage=include and options.flag("continuous_usage_stats"),
        interval=_interval(fields),
    )


def prompt_logprobs(fields: Fields, options: Streaming) -> int | None:
    """Return `prompt_logprobs`: alternatives per prompt token, None for no log-probabilities of the prompt.

    Raises:
        Refusal: 400 when it is out of range, or asked of a stream.
    """
    asked = fields.integer("prompt_logprobs")
    if asked is None:
        return None
    if asked and options.stream:
        raise bad_request("`prompt_logprobs` are not available when `stream=True`.", "prompt_logprobs")
    if not 0 <= asked <= MAX_LOGPROBS:
        raise bad_request(
            f"prompt_logprobs must be between 0 and {MAX_LOGPROBS}, got {asked}. "
            f"(parameter=prompt_logprobs, value={asked})",
            "prompt_logprobs",
        )
    return asked


def cache_salt(fields: Fields) -> str | None:
    """Return the salt that separates this request's prefix from others'.

    Raises:
        Refusal: 400 for an empty or over-long salt, or one with reserved characters.
    """
    salt = fields.text("cache_salt")
    if salt is None:
        return None
    if not 0 < len(salt) <= MAX_SALT_CHARACTERS or set(salt) & set("@/\\\0"):
        raise bad_request(
            f"cache_salt must have 1 to {MAX_SALT_CHARACTERS} characters, none of them @, /, \\ or NUL.",
            "cache_salt",
        )
    return salt


def check_token_ids(token_ids: Sequence[int]) -> None:
    """Refuse ids outside the mock's vocabulary.

    Raises:
        Refusal: 400 naming the id.
    """
    for token in token_ids:
        if not 0 <= token < VOCABULARY_SIZE:
            raise bad_request(f"Token id {token} is out of vocabulary", "prompt")


def _check_ranges(fields: Fields) -> None:
    temperature = fields.number("temperature")
    if temperature is not None and temperature < 0:
        raise _out_of_range("temperature", "be non-negative", temperature)
    top_p = fields.number("top_p")
    if top_p is not None and not 0 < top_p <= 1:
        raise _out_of_range("top_p", "be in (0, 1]", top_p)
    for name in ("presence_penalty", "frequency_penalty"):
        penalty = fields.number(name)
        if penalty is not None and not -2 <= penalty <= 2:
            raise bad_request(f"{name} must be in [-2, 2], got {penalty}.")


def _out_of_range(name: str, law: str, value: float) -> Refusal:
    return bad_request(f"{name} must {law}, got {value}. (parameter={name}, value={value})", name)


def _interval(fields: Fields) -> int:
    interval = fields.integer("stream_interval")
    if interval is None:
        return 1
    if interval < 1:
        raise bad_request(f"stream_interval must be at least 1, got {interval}.", "stream_interval")
    return interval
