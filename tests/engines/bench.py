"""One engine model, stepped by hand, that keeps KV for others and fetches it from them."""

from __future__ import annotations

from dataclasses import dataclass, field

from engines.model.engine import Engine, EngineConfig, Fetch, Job, Kept, Output
from engines.model.roofline import StepTimes
from engines.model.text import decode

CLOCK = StepTimes(
    base_s=0.01, per_sequence_s=0.0, per_kv_token_s=0.0, prefill_base_s=0.01, prefill_per_token_s=0.001
)


@dataclass
class Bench:
    """One engine, stepped by hand; every step takes a second."""

    engine: Engine
    now: float = 100.0
    outputs: list[Output] = field(default_factory=list)

    def add(self, job_id: str, prompt: int | range, **knobs: object) -> None:
        tokens = range(prompt) if isinstance(prompt, int) else prompt
        self.engine.add(Job(id=job_id, prompt_token_ids=tokens, **knobs), self.now)  # type: ignore[arg-type]  # any field

    def step(self) -> list[tuple[str, int]]:
        """The next step as (job, new tokens); empty when none can begin."""
        step = self.engine.begin_step(self.now)
        if step is None:
            return []
        self.now += 1.0
        outputs = self.engine.end_step(step, self.now)
        self.outputs += outputs
        return [(sequence.id, new) for sequence, new in step.scheduled]

    def rest(self) -> None:
        """Steps until none can begin."""
        while self.step():
            pass

    def fetch(self) -> Fetch:
        (fetch,) = self.engine.drain_fetches()
        return fetch

    def text(self, job_id: str) -> str:
        return decode(token for one in self.outputs if one.job_id == job_id for token in one.token_ids)

    @property
    def used(self) -> int:
        return self.engine._scheduler.kv.used_blocks


def bench(**knobs: object) -> Bench:
    knobs = {
        "num_blocks": 101, "block_size": 4, "max_model_len": 200, "kv_connector": True,
        "output_lengths": None, **knobs,
    }  # fmt: skip
    return Bench(Engine(EngineConfig(**knobs), CLOCK))  # type: ignore[arg-type]  # any field


def prefilled(b: Bench, job_id: str = "p", prompt: int | range = 10, **knobs: object) -> Kept:
    """What a prefill leg leaves behind."""
    b.add(job_id, prompt, **{"max_tokens": 1, "retain": True, **knobs})
    b.rest()
    kept = next(one.kept for one in b.outputs if one.job_id == job_id)
    assert kept is not None
    return kept
