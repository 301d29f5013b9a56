"""One iteration of an engine while it runs.

Separate from the engine so that whoever drives one can be read against this shape alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from engines.model.roofline import StepLoad
from engines.model.sequence import Sequence


@dataclass(slots=True)
class Step:
    """One iteration of the engine between its begin and its end.

    Attributes:
        duration_s: engine seconds that it takes, before any time scale.
        load: what it computes.
        scheduled: sequences and their new tokens, for `end_step`.
        preempted: ids of jobs that lost their blocks.
    """

    duration_s: float
    load: StepLoad
    scheduled: list[tuple[Sequence, int]]
    preempted: tuple[str, ...]

    @property
    def tokens(self) -> int:
        """Tokens computed: one sample of vLLM's `iteration_tokens_total`."""
        return self.load.prefill_tokens + self.load.decode_sequences
