"""One job inside the engine: its tokens, its blocks, how far it is computed, and where it must end."""

from __future__ import annotations

import enum

from engines.model.block_hash import BlockChain
from engines.model.generation import Answer, prompt_key
from engines.model.job import EngineConfig, EngineFault, FinishReason, Job, Timing


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
        length: prompt and output tokens so far.
        computed: tokens whose KV is, or in the open step becomes, computed. It chases `length`.
        room: tokens that `blocks` hold.
        stored: leading blocks registered in the prefix cache.
        fills_at: value of `computed` at which the next block becomes full.
        last_index: output index of the last token, which ends the job for `last_reason`.
    """

    __slots__ = (
        "answer", "block_size", "blocks", "chain", "computed", "fills_at", "id", "job", "last_index",
        "last_reason", "length", "order", "prompt_tokens", "rank", "room", "state", "stored", "timing",
    )  # fmt: skip

    def __init__(self, job: Job, config: EngineConfig, order: int, now: float) -> None:
        self.id = job.id
        self.job = job
        self.order = order
        self.block_size = config.block_size
        self.prompt_tokens = self.length = len(job.prompt_token_ids)
        self.chain = BlockChain(
            job.prompt_token_ids, config.block_size, lora=job.lora, cache_salt=job.cache_salt
        )
        arrival = now if job.arrival is None else job.arrival
        self.rank = (job.priority, arrival, order)
        self.timing = Timing(arrival=arrival, queued=now, prompt_tokens=self.prompt_tokens)
        self.state = State.WAITING
        key = prompt_key(job.prompt_token_ids, job.seed, job.sequence)
        self.answer = Answer(key)
        self.last_index, self.last_reason = _end(job, config, key)
        self.blocks: list[int] = []
        self.hold([], 0)

    def hold(self, blocks: list[int], stored: int) -> None:
        """Start over on `blocks`, of which the first `stored` are cached and so computed."""
        self.blocks = blocks
        self.room = len(blocks) * self.block_size
        self.stored = stored
        self.computed = stored * self.block_size
        self.fills_at = self.computed + self.block_size

    def extend(self, blocks: list[int]) -> None:
        """Hold more blocks."""
        self.blocks += blocks
        self.room = len(self.blocks) * self.block_size

    def append(self, token: int) -> None:
        """One more output token."""
        self.chain.tokens.append(token)
        self.length += 1

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


def _end(job: Job, config: EngineConfig, key: bytes) -> tuple[int, FinishReason]:
    """Output index of the last token, and why it is the last; a pooling job has no token."""
    if job.pooling:
        return -1, "stop"
    room = config.max_model_len - len(job.prompt_token_ids)
    limit = (room if job.max_tokens is None else min(job.max_tokens, room)) - 1
    if config.output_lengths is None or job.ignore_eos:
        return limit, "length"
    eos = max(config.output_lengths.draw(key) - 1, job.min_tokens)
    return (eos, "stop") if eos <= limit else (limit, "length")
