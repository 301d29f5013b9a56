"""The cost of one request at each worker, in seconds of delay for all whom it affects.

Separate from the policy, which only compares. Most terms are computed for every worker, in flat loops; the
rest cost more and are never below 0, so they are asked for in the order of what is known already, and a
minimum is found without those of workers that are above it anyway.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from operator import add, sub

import msgspec

from router.core.joint_cost import (
    Pace,
    crowding_wait_s,
    eviction_s,
    overflow_s,
    overrun_share,
    postponed_copy_s,
)
from router.core.prefix_settings import PrefixSettings
from router.core.prefixes import Prefixes
from router.core.step_model import StepModel, TransferModel
from router.core.worker import Role, WorkerView
from router.policies.barrier import peers_of
from router.policies.guard import BLOCK_TOKENS
from router.policies.joint_memory import Memory
from router.policies.joint_terms import Ask, Extras, Terms
from router.policies.least_work import PRIOR, steps_of
from router.policies.load import least

_CACHED_SHARE = PrefixSettings().capacity_share


class Bill:
    """One decision's costs.

    Attributes:
        calibrated: the coefficients were measured; otherwise they are the prior of `least_work`.
        held: tokens of the prompt that each worker is believed to hold.
        terms: of every worker.
    """

    __slots__ = (
        "_counts", "_elsewhere_s", "_kv_tokens", "_loads", "_memory", "_now", "_prefixes", "_steps", "ask",
        "calibrated", "held", "terms", "workers",
    )  # fmt: skip

    def __init__(
        self,
        ask: Ask,
        workers: Sequence[WorkerView],
        memory: Memory,
        prefixes: Prefixes | None,
        now: float,
    ) -> None:
        self.ask, self.workers = ask, workers
        self._memory, self._prefixes, self._now = memory, prefixes, now
        self._elsewhere_s: float | None = None
        self._counts = [w.sequences for w in workers]
        self._kv_tokens = [w.kv_tokens for w in workers]
        groups = _groups_of(workers)
        members = [member for group in groups for member in group.values()]
        known = steps_of([*workers, *members] if members else workers)
        self.calibrated = known is not None
        self._steps = (known or [_prior(w.capacity) for w in workers])[: len(workers)]
        tokens = {} if prefixes is None else prefixes.matched(ask.request).tokens
        held = [tokens.get(w.name, 0) for w in workers] if tokens else [0] * len(workers)
        self.held = [known if known >= BLOCK_TOKENS else 0 for known in held] if tokens else held
        count = len(workers)
        self.terms = Terms(*[[0.0] * count for _ in range(8)])
        if ask.prefills:
            self._add_prefill()
        else:
            self._add_transfer()
        if ask.demand.output_tokens:
            self._add_decode()
            for group in groups:
                self._add_group(group)
        terms = self.terms
        sums = map(add, terms.prefill, terms.stall)
        for term in (terms.wait, terms.transfer, terms.company, terms.slowdown, terms.overflow):
            sums = map(add, sums, term)
        self._loads: list[float] = list(sums)

    # --- terms of every worker: those of router.core.cost, written out, since 64 calls of each cost more
    # --- than all the rest of a pick -----------------------------------------------------------------

    def _add_prefill(self) -> None:
        """Own prefill, those who stand still for it, and the prompts before it."""
        memory, workers, terms, steps = self._memory, self.workers, self.terms, self._steps
        prompt = self.ask.demand.prompt_tokens
        # With m = p - h missed tokens, m + 2 h is p + h.
        own = terms.prefill = [
            step.prefill_base_s
            + step.prefill_per_token_s * (prompt - held)
            + step.prefill_per_token_squared_s * ((prompt - held) * (prompt + held))
            for step, held in zip(steps, self.held, strict=True)
        ]
        silent_s, waits = memory.silence.longest_s(workers, self._now), terms.wait
        for index, (queued, step, count, kv_tokens) in enumerate(
            zip(self._queues(), steps, self._counts, self._kv_tokens, strict=True)
        ):
            if queued <= 0:
                continue
            # As many prompts as make up so much of what is there, each of the mean length.
            mean = kv_tokens // count if count else queued
            if not 0 < mean < queued:
                mean = queued
            one_s = (
                step.prefill_base_s
                + (step.prefill_per_token_s + step.prefill_per_token_squared_s * mean) * mean
            )
            all_s = one_s * queued / mean
            silence_s = silent_s[index]
            if silence_s:
                all_s = _after_silence(all_s, one_s, silence_s, step.step_s(count, kv_tokens))
            waits[index] = all_s
        self._add_foreign()
        if workers[0].role is Role.PREFILL:
            # It also keeps KV of prompts that it has done with; they wait for nothing here.
            counts = [memory.silence.count(w) for w in workers]
            at_each = sum(counts) / len(counts)
        else:
            counts = self._counts
            at_each = max(sum(counts), memory.crowd.mean(self._now)) / len(counts)
        terms.stall = _stall(own, counts, at_each)

    def _queues(self) -> list[int]:
        """Tokens that each worker is still to prefill, as far as the ledger and this policy's memory go."""
        memory, workers = self._memory, self.workers
        queues = [w.queued_tokens for w in workers]
        if len(memory.hits):
            queues = list(map(sub, queues, memory.hits.tokens(workers)))
        if not len(memory.unseen):
            return queues
        for index, whole in enumerate(memory.unseen.prompt_tokens(workers)):
            queued = queues[index]
            if whole and queued > 0:
                unseen_tokens = min(whole, queued)
                backlog = memory.unseen.backlog_tokens(
                    workers[index].name, unseen_tokens, self._steps[index].prefill_per_token_s, self._now
                )
                queues[index] = queued - unseen_tokens + backlog
        return queues

    def _add_foreign(self) -> None:
        """Prompts that wait in an engine and are not ours, each taken for one like this, uncached."""
        fresh_from = self._now - self.ask.stats_max_age_s
        tokens = self.ask.demand.prompt_tokens
        for index, w in enumerate(self.workers):
            stats = w.stats
            if stats is None or not stats.waiting or stats.taken < fresh_from:
                continue
            foreign = stats.waiting - w.in_flight
            if foreign > 0:
                self.terms.wait[index] += foreign * self._steps[index].prefill_s(tokens)

    def _add_transfer(self) -> None:
        """KV that comes from another worker."""
        handover = self.ask.request.handover
        if handover is not None:
            self.terms.transfer = self.transfers_s(handover.producer, range(len(self.workers)))

    def transfers_s(self, producer: str, indices: Sequence[int]) -> list[float]:
        """From one prefill worker to some of the workers, without what they hold. Where it was never measured
        it takes as long as to the mean of those."""
        tokens = self.ask.demand.prompt_tokens
        known: list[float] = []
        found: list[float | None] = []
        for index in indices:
            model = _transfers_of(self.workers[index]).get(producer)
            if model is None:
                found.append(None)
            else:
                known.append(model.transfer_s(max(tokens - self.held[index], 0)))
                found.append(known[-1])
        mean_s = sum(known) / len(known) if known else 0.0
        return [mean_s if seconds is None else seconds for seconds in found]

    def _add_decode(self) -> None:
        """Own decode, and the growth of the step for those who decode beside it."""
        demand, counts, kv_tokens = self.ask.demand, self._counts, self._kv_tokens
        output, sequences, held_kv = demand.output_tokens, demand.sequences, demand.mean_kv_tokens
        terms = self.terms
        for index, (w, step, count, kv) in enumerate(
            zip(self.workers, self._steps, counts, kv_tokens, strict=True)
        ):
            growth = step.step_per_sequence_s * sequences + step.step_per_kv_token_s * held_kv
            longer_s = step.step_per_sequence_s * count + step.step_per_kv_token_s * kv + growth
            steps = output / step.tokens_per_step
            terms.decode[index] = step.step_base_s * steps
            terms.company[index] = longer_s * steps
            if count:
                # Of means, and so never too little: the mean of min(rest, o) is at most min(mean rest, o).
                terms.slowdown[index] = (
                    growth * min(w.remaining_tokens, count * output) / step.tokens_per_step
                )

    def _add_group(self, members: Mapping[str, WorkerView]) -> None:
        """In a barrier group all step together: those who wait are all of its sequences, and what they wait
        for is only what exceeds its slowest step. What is there grows alike everywhere, so it is left out."""
        views = list(members.values())
        steps = steps_of(views) if self.calibrated else [_prior(w.capacity) for w in views]
        pace = Pace.of(steps or [], [w.sequences for w in views], [w.kv_tokens for w in views])
        ask, terms = self.ask, self.terms
        demand = ask.demand
        for index, (w, step) in enumerate(zip(self.workers, self._steps, strict=True)):
            if w.name not in members:
                continue
            after_s = step.step_s(
                self._counts[index] + demand.sequences, self._kv_tokens[index] + demand.prompt_tokens
            )
            own_steps = step.steps(demand.output_tokens)
            terms.decode[index] = pace.step_s * own_steps
            terms.company[index] = max(after_s - pace.step_s, 0.0) * own_steps
            terms.slowdown[index] = 0.0
            terms.overflow[index] = overflow_s(pace, after_s, min(own_steps, ask.horizon_steps))
            terms.stall[index] = terms.prefill[index] * pace.sequences

    # --- terms of single workers -----------------------------------------------------------------------

    def extras(self, index: int) -> Extras:
        """The other terms of one worker."""
        late = 0.0
        crowding = self._crowding_s(index)
        deadline = self.ask.request.deadline
        if deadline is not None:
            terms = self.terms
            first_s = crowding + terms.wait[index] + terms.transfer[index] + terms.prefill[index]
            late = max(self._now + first_s - deadline, 0.0)
        return Extras(crowding, self._eviction_s(index), self._copy_s(index), late)

    def _crowding_s(self, index: int) -> float:
        """While slots and KV of the worker are taken."""
        w, count, demand = self.workers[index], self._counts[index], self.ask.demand
        if not count:
            return 0.0
        share, free, capacity = 0.0, w.free_slots, w.kv_capacity_tokens
        if free is not None and free < demand.sequences:
            share = (demand.sequences - free) / count
        kv_tokens = self._kv_tokens[index]
        if capacity is not None and kv_tokens:
            share = max(share, overrun_share(kv_tokens, count, demand.final_kv_tokens, capacity))
        if not share:
            return 0.0
        step = self._steps[index]
        rest = step.steps(w.remaining_tokens / count)
        return crowding_wait_s(share, rest, step.step_s(count, kv_tokens))

    def _eviction_s(self, index: int) -> float:
        """What is evicted was asked for last the longest ago; how much of it would be asked for again is
        taken to be the share of all prompts that is found cached."""
        w, reuse = self.workers[index], self._memory.reuse
        capacity = w.kv_capacity_tokens
        if capacity is None or self._prefixes is None or not (reuse and self.ask.prefills):
            return 0.0
        missed = self.ask.demand.prompt_tokens - self.held[index]
        over = self._prefixes.held_tokens([w])[0] + missed - _CACHED_SHARE * capacity
        return eviction_s(self._steps[index], min(over, missed), reuse)

    def _copy_s(self, index: int) -> float:
        """Only a holder of the whole key portion keeps others from getting it."""
        ask = self.ask
        if not ask.key_tokens or not self._holds_key(index):
            return 0.0
        rate = self._memory.portions.rate_per_s(ask.key, self._now)
        if not rate:
            return 0.0
        if self._elsewhere_s is None:
            others = [self._crowd_s(n) for n in range(len(self.held)) if not self._holds_key(n)]
            self._elsewhere_s = min(others, default=float("inf"))
        terms = self.terms
        lasts_s = terms.wait[index] + terms.prefill[index] + terms.decode[index] + terms.company[index]
        return postponed_copy_s(rate, lasts_s, self._crowd_s(index) - self._elsewhere_s)

    def _crowd_s(self, index: int) -> float:
        """What the others at a worker cost, whatever is cached there."""
        terms = self.terms
        decode_s = terms.decode[index] + terms.company[index]
        return terms.wait[index] + decode_s + terms.slowdown[index] + terms.overflow[index]

    def _holds_key(self, index: int) -> bool:
        return self.held[index] + BLOCK_TOKENS >= self.ask.key_tokens

    def named(self, index: int) -> dict[str, float]:
        """All terms of one worker by name, for those who ask why."""
        terms = msgspec.structs.asdict(self.terms)
        seconds = {f"{name}_s": values[index] for name, values in terms.items()}
        extras = {f"{name}_s": value for name, value in self.extras(index)._asdict().items()}
        return {**seconds, **extras, "warmup": self.workers[index].warmup, "held_tokens": self.held[index]}

    def reason(self, index: int) -> str:
        """Why a worker would be chosen if it were."""
        longest = max(self.held)
        if not longest:
            reason = "least_cost"
        else:
            reason = "prefix" if self.held[index] + BLOCK_TOKENS > longest else "copy"
        return reason if self.calibrated else f"uncalibrated:{reason}"

    # --- the minimum -----------------------------------------------------------------------------------

    def cost(self, index: int) -> float:
        """Of one worker, in seconds. One that came back lately looks as if all that depends on its load were
        more; an answer takes its time anywhere."""
        load_s = self._loads[index] + self.extras(index).total
        return self.terms.decode[index] + load_s * self.workers[index].warmup

    def bounds(self) -> list[float]:
        """No worker costs less; most cost just that."""
        alone = self.terms.decode
        return [
            decode + load * w.warmup for decode, load, w in zip(alone, self._loads, self.workers, strict=True)
        ]

    @property
    def longest_holders(self) -> list[int]:
        """Who holds as much of the prompt as any, to a block; nobody where nothing is held."""
        longest = max(self.held)
        return [n for n, held in enumerate(self.held) if held + BLOCK_TOKENS > longest] if longest else []

    def cheapest(self, seed: int) -> tuple[int, float]:
        """Index and cost of the lowest; among equals one is drawn by hash."""
        bounds = self.bounds()
        first = bounds.index(min(bounds))
        lowest = self.cost(first)
        # Whoever may still be as cheap is asked for all of its terms; mostly nobody is.
        costs = {
            index: self.cost(index) if index != first else lowest
            for index, bound in enumerate(bounds)
            if bound <= lowest
        }
        lowest = min(costs.values())
        tied = [index for index, cost in costs.items() if cost == lowest]
        views = [self.workers[index] for index in tied]
        return tied[least([lowest] * len(tied), views, self.ask.request, seed)], lowest


def _stall(own: Sequence[float], counts: Sequence[int], mean: float) -> list[float]:
    """Seconds for those who stand still while each of the prefills runs.

    Those are the ones who are there. But time that an engine loses is lost to those who come later as well,
    and they will find as many as the mean worker has. Each counts half: by the present ones alone, a prompt
    would be computed again wherever a worker happens to be less busy, though the next one that is cached
    nowhere fills that gap for nothing.
    """
    return [seconds * (count + mean) / 2.0 for seconds, count in zip(own, counts, strict=True)]


def _after_silence(all_s: float, one_s: float, silent_s: float, running_s: float) -> float:
    """Seconds until a queue is prefilled that takes `all_s`, and the first of it, which came `silent_s` ago,
    `one_s`.

    It has had a part of its own prefill by now. But when it should have shown output long ago, after the step
    that ran when it came and all of this, the engine hangs, or is slower than its coefficients: the next one
    will wait longer by as much.
    """
    return all_s - min(silent_s, one_s) + max(silent_s - running_s - all_s, 0.0)


def _groups_of(workers: Sequence[WorkerView]) -> list[dict[str, WorkerView]]:
    """The declared barrier groups, members that were not offered included; most pools have none."""
    groups: dict[str, dict[str, WorkerView]] = {}
    for worker in workers:
        if worker.barrier_group is not None:
            groups.setdefault(worker.barrier_group, {})[worker.name] = worker
    for members in groups.values():
        for peer in peers_of(next(iter(members.values()))):
            members.setdefault(peer.name, peer)
    return list(groups.values())


@lru_cache(maxsize=256)
def _prior(capacity: float) -> StepModel:
    """The prior at a worker of so much times the mean speed."""
    return StepModel(
        prefill_base_s=PRIOR.prefill_base_s / capacity,
        prefill_per_token_s=PRIOR.prefill_per_token_s / capacity,
        step_base_s=PRIOR.step_base_s / capacity,
        step_per_sequence_s=PRIOR.step_per_sequence_s / capacity,
        step_per_kv_token_s=PRIOR.step_per_kv_token_s / capacity,
    )


def _transfers_of(worker: WorkerView) -> Mapping[str, TransferModel]:
    """What was measured of its transfers, nothing where the view does not say."""
    transfers: Mapping[str, TransferModel] = getattr(worker, "transfers", {})
    return transfers
