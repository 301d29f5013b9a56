"""What no engine of a given context length can run, whatever else it has to do.

Separate from the engine, whose own refusals depend on how full it is.
"""

from __future__ import annotations

from engines.model.job import EngineRejects, Job
from engines.model.parts import PromptParts
from engines.model.text import VOCABULARY_SIZE


def check(job: Job, longest: int) -> None:
    """Raises EngineRejects for a job that can never run in a context of `longest` tokens."""
    length = len(job.prompt_token_ids)
    if length < 1:
        raise EngineRejects("prompt", "the prompt is empty")
    if length + (0 if job.pooling else 1) > longest:
        raise EngineRejects(
            "input_tokens",
            f"the prompt has {length} tokens and leaves no room for output in {longest} tokens",
        )
    _check_output(job, longest)
    if isinstance(job.prompt_token_ids, PromptParts):
        return
    if min(job.prompt_token_ids) < 0 or max(job.prompt_token_ids) >= VOCABULARY_SIZE:
        raise EngineRejects("prompt", f"a token id is outside the vocabulary of {VOCABULARY_SIZE}")


def _check_output(job: Job, longest: int) -> None:
    if job.max_tokens is not None and not job.pooling:
        if not 1 <= job.max_tokens <= longest:
            raise EngineRejects("max_tokens", f"max_tokens is {job.max_tokens}: 1 to {longest} are allowed")
        if job.min_tokens > job.max_tokens:
            raise EngineRejects("min_tokens", "min_tokens is larger than max_tokens")
    if job.min_tokens < 0:
        raise EngineRejects("min_tokens", f"min_tokens is {job.min_tokens}: at least 0 is needed")
