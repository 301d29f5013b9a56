"""One job inside the engine: its tokens, its blocks, how far it is computed, and where it must end."""

from __future__ import annotations

import enum

from engines.model.block_hash import BlockChain
from engines.model.generation import Continuation, prompt_key
from engines.model.job import EngineConfig, EngineFault, Job, Timing


class State(enum.Enum):
    """Where a sequence is. Preempted ones are waiting again."""

    WAITING = "waiting"
    RUNNING = "running"
    GONE = "gone"


_NEXT = {
    State.WAITING: {State.RUNNING, State.GONE},
    State.RUNNING: {State.WAITING, State.GONE},
    State.GONE: set[State](),
}


class Sequence:
    """Mutable state of one job; only the scheduler and the engine write to it.

    Attributes:
        order: arrival number; breaks ties.
        computed: tokens whose KV is, or in the open step becomes, computed. It chases `length`.
        stored: leading blocks registered in the prefix cache.
        last_index: output index at which the job ends at the latest.
        eos_index: output index at which EOS comes, None: never.
    """

    __slots__ = (
        "blocks", "chain", "computed", "continuation", "eos_index", "job", "last_index", "order",
        "prompt_tokens", "rank", "state", "stored", "timing",
    )  # fmt: skip

    def __init__(self, job: Job, config: EngineConfig, order: int, now: float) -> None:
        self.job = job
        self.order = order
        self.prompt_tokens = len(job.prompt_token_ids)
        self.chain = BlockChain(
            job.prompt_token_ids, config.block_size, lora=job.lora, cache_salt=job.cache_salt
        )
        arrival = now if job.arrival is None else job.arrival
        self.rank = (job.priority, arrival, order)
        self.timing = Timing(arrival=arrival, queued=now, prompt_tokens=self.prompt_tokens)
        self.state = State.WAITING
        self.blocks: list[int] = []
        self.computed = 0
        self.stored = 0
        key = prompt_key(job.prompt_token_ids, job.seed, job.sequence)
        self.continuation = Continuation(key)
        room = config.max_model_len - self.prompt_tokens
        self.last_index = (room if job.max_tokens is None else min(job.max_tokens, room)) - 1
        self.eos_index: int | None = None
        if config.output_lengths is not None and not job.ignore_eos:
            self.eos_index = max(config.output_lengths.draw(key) - 1, job.min_tokens)

    @property
    def length(self) -> int:
        """Prompt and output tokens so far."""
        return len(self.chain.tokens)

    def move(self, to: State) -> None:
        """Change state.

        Raises:
            EngineFault: for a step that the table does not know.
        """
        if to not in _NEXT[self.state]:
            raise EngineFault(f"job {self.job.id} cannot go from {self.state.value} to {to.value}")
        self.state = to

    def __repr__(self) -> str:
        return (
            f"<Sequence {self.job.id} {self.state.value} "
            f"[{self.computed}/{self.length} computed | {len(self.blocks)} blocks]>"
        )
