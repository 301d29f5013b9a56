"""Workers that hold prefixes, and requests with prompts, for the laws of the policies that follow them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from msgspec import structs

from router.core.lease import Lease, Outcome
from router.core.policy import Choice, Commits, Policy, Settles, Starts
from router.core.prefixes import Binds, PoolPrefixes
from router.core.prompt_key import PromptKey
from router.core.request import Request
from router.core.worker import StepModel, Worker
from router.policies import build
from tests.policies.examples import NOW, request

CHARACTERS_PER_TOKEN = 4


def tokens(letter: str, count: int) -> str:
    """Text of so many tokens."""
    return letter * (count * CHARACTERS_PER_TOKEN)


def asking(text: str, sequence: int = 0, /, **what: object) -> Request:
    """A request with a prompt."""
    key = PromptKey.of_text("model", text)
    return request(sequence, **{"prompt_tokens": len(text) // CHARACTERS_PER_TOKEN, "key": key} | what)


class Fleet:
    """Workers as a pool keeps them, with a policy that is bound to what they hold."""

    def __init__(
        self, name: str, count: int = 4, /, *, step: StepModel | None = None, seed: int = 1, **params: object
    ) -> None:
        self.policy = cast(Policy, build(name, params, seed))
        self.prefixes = PoolPrefixes()
        if isinstance(self.policy, Binds):
            self.policy.bind(self.prefixes)
        self.workers = [Worker(name=f"w{n}", models=frozenset({"model"}), step=step) for n in range(count)]
        self.prefixes.sweep(self.workers, NOW)
        self.running: list[Lease] = []

    def pick(self, one: Request, now: float = NOW, *, among: Sequence[int] | None = None) -> Choice:
        workers = self.workers if among is None else [self.workers[n] for n in among]
        choice = self.policy.pick(one, workers, now)
        assert choice is not None
        assert self.policy.pick(one, workers, now) == choice
        return choice

    def send(self, one: Request, now: float = NOW, *, to: int | None = None) -> Choice:
        """Places a request as the pool does: picked, charged, committed."""
        choice = self.pick(one, now) if to is None else Choice(one.id, f"w{to}", reason="told")
        self.charge(one, choice, now)
        return choice

    def charge(self, one: Request, choice: Choice, now: float) -> Lease:
        worker = self.workers[int(choice.worker[1:])]
        lease = Lease(
            request=one,
            worker=worker.name,
            incarnation=worker.incarnation,
            granted=now,
            prompt_tokens=one.prompt_tokens,
            expected_tokens=1,
        )
        worker.mirror.charge(lease)
        self.running.append(lease)
        self.prefixes.charged(lease, worker, now)
        if isinstance(self.policy, Commits):
            self.policy.committed(one, choice, now, retry=one.attempt > 0)
        return lease

    def start(self, lease: Lease, now: float) -> None:
        self.workers[int(lease.worker[1:])].mirror.prefilled(lease)
        self.prefixes.started(lease, now)
        if isinstance(self.policy, Starts):
            self.policy.started(lease, now)

    def end(
        self, lease: Lease, now: float = NOW, outcome: Outcome = Outcome.OK, generated_tokens: int = 0
    ) -> None:
        mirror = self.workers[int(lease.worker[1:])].mirror
        mirror.generated(lease, generated_tokens)
        lease.outcome = outcome
        mirror.settle(lease)
        self.running.remove(lease)
        self.prefixes.settled(lease, now)
        if isinstance(self.policy, Settles):
            self.policy.settled(lease, outcome, now)

    def serve(
        self, one: Request, now: float = NOW, *, to: int | None = None, generated_tokens: int = 0
    ) -> str:
        """Places a request and ends it at once; returns the name of its worker."""
        choice = self.send(one, now, to=to)
        self.end(self.running[-1], now, generated_tokens=generated_tokens)
        return choice.worker

    def load(self, number: int, requests: int) -> None:
        """Gives a worker so many requests that it holds for good, without prompts."""
        mirror = self.workers[number].mirror
        mirror.in_flight += requests
        mirror.sequences += requests


def again(one: Request, *failed: str) -> Request:
    """The same request once more, after it failed on these."""
    return structs.replace(one, attempt=one.attempt + 1, avoid=frozenset(failed))
