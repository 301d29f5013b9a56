"""Everything that shapes one replay, with its default. The report repeats it, so keys are never in here."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

Api: TypeAlias = Literal["chat", "completions"]

PATHS: dict[Api, bytes] = {"chat": b"/v1/chat/completions", "completions": b"/v1/completions"}


class Slo(msgspec.Struct, frozen=True, kw_only=True):
    """What a good answer is; a bound that is None is not asked for. TTFT and e2e count from the due time."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_s: float | None = None

    @property
    def asked(self) -> bool:
        return (self.ttft_ms, self.tpot_ms, self.e2e_s) != (None, None, None)


class ReplaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """One replay.

    Attributes:
        url: of the endpoint, without credentials.
        model: sent with every request, unless `trace_models` and the entry knows its own.
        limit: requests taken from the trace.
        speed, jitter_s, duration_s: see `schedule.Pace`.
        concurrency_cap: most requests in flight; the due time does not move when it is reached.
        ignore_eos: ask the engine to generate the full length (vLLM, SGLang and the mock know the field).
        send_session: send the entry's session as `prompt_cache_key`.
        first_event_s, idle_s, total_s: deadlines of a request, the last one over all of it.
        overhead_tokens, tokens_per_word: as calibrated or given; see `prompts.Tokenizer`.
        max_model_len: of the engine, None when it does not say; longer prompts are skipped.
    """

    url: str
    model: str
    api: Api = "chat"
    seed: int = 0
    limit: int | None = None
    speed: float = 1.0
    jitter_s: float = 0.0
    duration_s: float | None = None
    concurrency_cap: int = 10_000
    ignore_eos: bool = True
    trace_models: bool = False
    send_session: bool = False
    first_event_s: float = 600.0
    idle_s: float = 600.0
    total_s: float = 3600.0
    overhead_tokens: float = 0.0
    tokens_per_word: float = 1.0
    max_model_len: int | None = None
    slo: Slo = Slo()
