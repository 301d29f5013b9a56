"""One job inside the engine: its tokens, its blocks, how far it is computed, and where it must end."""

from __future__ import annotations

import enum

from engines.model.block_hash import BlockChain
from engines.model.generation import Answer, prompt_key
from engines.model.job import EngineConfig, EngineFault, FinishReason, Job, Timing
from engines.model.parts import PartsChain, PromptParts


class State(enum.Enum):
    """Where a sequence is. Preempted ones are waiting again.

    A fetching one holds all its blocks while a prefill engine's KV is on its way into them; a fetched one
    has it and waits for its place in the batch. Neither can be preempted.
    """

    WAITING = "waiting"
    FETCHING = "fetching"
    FETCHED = "fetched"
    RUNNING = "running"
    GONE = "gone"


_NEXT = {
    State.WAITING: {State.FETCHING, State.RUNNING, State.GONE},
    State.FETCHING: {State.FETCHED, State.WAITING, State.GONE},
    State.FETCHED: {State.RUNNING, State.GONE},
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
        unread: the chain, where it is of parts: no token of it or of the answer is ever read.
        answer: what it writes; None where nobody reads it.
        to_fetch: its KV is with a prefill engine and nobody has asked for it yet.
    """

    __slots__ = (
        "_key", "answer", "block_size", "blocks", "chain", "computed", "config", "fills_at", "id", "job",
        "last_index", "last_reason", "length", "order", "prompt_tokens", "rank", "room", "state", "stored",
        "timing", "to_fetch", "unread",
    )  # fmt: skip

    def __init__(self, job: Job, config: EngineConfig, order: int, now: float) -> None:
        self.id = job.id
        self.job = job
        self.config = config
        self.order = order
        self.block_size = config.block_size
        self.prompt_tokens = self.length = len(job.prompt_token_ids)
        self.chain = _chain(job, config.block_size)
        self.unread = self.chain if isinstance(self.chain, PartsChain) else None
        arrival = now if job.arrival is None else job.arrival
        self.rank = (job.priority, arrival, order)
        self.timing = Timing(
            arrival=arrival,
            queued=now,
            prompt_tokens=self.prompt_tokens,
            remote_cached_tokens=job.remote_cached_tokens,
        )
        self.state = State.WAITING
        self.to_fetch = job.fetch
        self._key: bytes | None = None
        self.answer = Answer(self.key) if self.unread is None else None
        self.last_index, self.last_reason = self._end()
        self.blocks: list[int] = []
        self.hold([], 0)

    def hold(self, blocks: list[int], stored: int) -> None:
        """Start over on `blocks`, of which the first `stored` are cached and so computed."""
        self.blocks = blocks
        self.room = len(blocks) * self.block_size
        self.stored = stored
        self.computed = stored * self.block_size
        self.fills_at = self.computed + self.block_size

    @property
    def key(self) -> bytes:
        """Identity of its answer; made when it is first asked for, as that takes the whole prompt."""
        if self._key is None:
            self._key = _identity(self.job, self.job.seed, self.job.sequence)
        return self._key

    @property
    def content(self) -> bytes:
        """Identity of what its prompt leaves in the KV cache, whoever asks and however."""
        return _identity(self.job, 0, 0)

    def loaded(self) -> None:
        """All KV of the prompt is here. The last token is computed anew: nothing to sample from otherwise."""
        self.stored = self.length // self.block_size
        self.computed = self.length - 1
        self.fills_at = (self.stored + 1) * self.block_size

    def garble(self) -> None:
        """Go on with a wrong answer, at least two tokens long so that it cannot pass for an empty one."""
        if not self.timing.garbled:
            self.timing.garbled = True
            if self.answer is not None:
                self.answer = Answer(self.key, garbled=True)
            self.last_index, self.last_reason = self._end(least=2)

    def extend(self, blocks: list[int]) -> None:
        """Hold more blocks."""
        self.blocks += blocks
        self.room = len(self.blocks) * self.block_size

    def token(self, index: int) -> int:
        """Output token at `index`; 0 where nobody reads one."""
        return self.answer.token(index) if self.answer is not None else 0

    def append(self, token: int) -> None:
        """One more output token."""
        self.chain.append(token)
        self.length += 1

    def grow(self, tokens: int) -> None:
        """So many more output tokens."""
        if self.unread is not None:
            self.unread.length += tokens
            self.length += tokens
        else:
            first = self.timing.generation_tokens
            for index in range(first, first + tokens):
                self.append(self.token(index))

    def move(self, to: State) -> None:
        """Change state.

        Raises:
            EngineFault: for a step that the table does not know.
        """
        if to not in _NEXT[self.state]:
            raise EngineFault(f"job {self.job.id} cannot go from {self.state.value} to {to.value}")
        self.state = to

    def _end(self, *, least: int = 1) -> tuple[int, FinishReason]:
        """Output index of the last token, and why it is the last; a pooling job has no token.

        Args:
            least: tokens of an answer that ends by itself.
        """
        job, config = self.job, self.config
        if job.pooling:
            return -1, "stop"
        room = config.max_model_len - self.prompt_tokens
        limit = (room if job.max_tokens is None else min(job.max_tokens, room)) - 1
        if config.output_lengths is None or job.ignore_eos:
            return limit, "length"
        eos = max(config.output_lengths.draw(self.key) - 1, job.min_tokens, least - 1)
        return (eos, "stop") if eos <= limit else (limit, "length")

    def __repr__(self) -> str:
        return (
            f"<Sequence {self.job.id} {self.state.value} "
            f"[{self.computed}/{self.length} computed | {len(self.blocks)} blocks]>"
        )


def _chain(job: Job, block_size: int) -> BlockChain | PartsChain:
    prompt = job.prompt_token_ids
    if isinstance(prompt, PromptParts):
        return PartsChain(prompt, block_size, sequence=job.sequence, lora=job.lora, cache_salt=job.cache_salt)
    return BlockChain(prompt, block_size, lora=job.lora, cache_salt=job.cache_salt)


def _identity(job: Job, seed: int, sequence: int) -> bytes:
    prompt = job.prompt_token_ids
    if isinstance(prompt, PromptParts):
        return prompt.identity(seed, sequence)
    return prompt_key(prompt, seed, sequence)
