"""Small engines, and running them to their end."""

from collections.abc import Sequence

from engines.model.engine import Engine, EngineConfig, Job, Output
from engines.model.roofline import StepTimes

CLOCK = StepTimes(
    base_s=0.01, per_sequence_s=1e-3, per_kv_token_s=1e-6, prefill_base_s=0.01, prefill_per_token_s=1e-3
)


def engine(**knobs: object) -> Engine:
    knobs = {"num_blocks": 201, "block_size": 4, "max_model_len": 400, **knobs}
    return Engine(EngineConfig(**knobs), CLOCK)  # type: ignore[arg-type]  # any field


def job(job_id: str = "a", prompt: int | Sequence[int] = 10, **knobs: object) -> Job:
    tokens = range(prompt) if isinstance(prompt, int) else prompt
    return Job(id=job_id, prompt_token_ids=tokens, **knobs)  # type: ignore[arg-type]  # any field


def advance(target: Engine, now: float) -> tuple[float, list[Output]]:
    step = target.begin_step(now)
    assert step is not None
    return now + step.duration_s, target.end_step(step, now + step.duration_s)


def run(target: Engine, now: float = 0.0) -> dict[str, list[Output]]:
    """All outputs by job, until the engine is idle."""
    seen: dict[str, list[Output]] = {}
    while not target.idle:
        now, outputs = advance(target, now)
        for output in outputs:
            seen.setdefault(output.job_id, []).append(output)
    return seen


def tokens_of(outputs: list[Output]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]
