"""Laws of real policies in the shadow of real ones: none fails, each is asked, each agrees with itself."""

from __future__ import annotations

import random

import pytest

from router.core.binding import Mode
from router.core.lease import Lease, Outcome
from router.core.pool import Pool
from router.core.prompt_key import PromptKey
from router.core.seat import Seat
from router.core.shadows import Shadow, Verdict
from router.core.worker import StepModel
from router.policies import POLICIES, Shape, build
from tests.core.fleet_examples import MODEL, assert_idle, pool, request

ONE_AT_A_TIME = [spec.name for spec in POLICIES.values() if spec.shape is Shape.ONE]
STEP = StepModel(0.01, 1e-4, 0.02, 1e-4, 1e-7)
SEED = 7


def shadowed(main: str, shadows: list[str], step: StepModel | None = None) -> Pool:
    late = POLICIES[main].shape is Shape.BATCH
    made = pool(
        *"abcd",
        policy=build(main, {}, SEED),
        slots=6,
        in_flight=1000,
        queued_bytes=10**9,
        mode=Mode.LATE if late else Mode.EARLY,
    )
    made.use(made.policy, main)
    for worker in made.roster:
        worker.step, worker.configured_kv_tokens = step, 100_000
    made.chooser.on_dropped = _raise
    made.chooser.shadow([Shadow(Seat(name, build(name, {}, SEED)), "") for name in shadows], 1.0)
    return made


def _raise(name: str, error: Exception) -> None:
    raise AssertionError(f"{name} failed in the shadow") from error


def drive(made: Pool, count: int = 120, seed: int = 3) -> int:
    """Conversations that share beginnings come, grow and end; returns how many were placed."""
    source, running, now, placed = random.Random(seed), list[Lease](), 1.0, 0
    for number in range(count):
        now += source.expovariate(30.0)
        talk = source.randrange(9)
        text = f"system {talk % 3} " * 200 + f"talk {talk} " * source.choice([20, 200])
        one = request(
            f"{seed} {number}",
            sequence=number,
            arrived=now,
            prompt_tokens=len(text) // 4,
            max_tokens=source.choice([None, 60]),
            affinity=f"c{talk}",
            stream=True,
            key=PromptKey.of_text(MODEL, text),
        )
        made.submit(one, now)
        running += (leases := made.assign(now))
        placed += len(leases)
        for lease in running:
            made.progress(lease, now, generated_tokens=lease.generated_tokens + source.randrange(1, 30))
        while running and source.random() < 0.5:
            made.release(running.pop(source.randrange(len(running))), Outcome.OK, now)
    while running:
        made.release(running.pop(), Outcome.OK, now)
        running += (leases := made.assign(now))
        placed += len(leases)
    assert_idle(made)
    return placed


@pytest.mark.parametrize("step", [None, STEP])
@pytest.mark.parametrize("name", ONE_AT_A_TIME)
def test_a_policy_in_its_own_shadow_agrees_with_every_decision(name: str, step: StepModel | None) -> None:
    made = shadowed(name, [name], step)
    placed = drive(made)
    (shadow,) = made.chooser.shadows
    assert shadow.verdicts == {Verdict.AGREED: placed}
    assert shadow.regret == 0.0


@pytest.mark.parametrize("start", range(0, len(POLICIES), 4))
@pytest.mark.parametrize("main", ["round_robin", "cache_aware", "balance_route_0", "joint"])
def test_every_policy_can_stand_in_the_shadow_of_another(main: str, start: int) -> None:
    shadows = list(POLICIES)[start : start + 4]
    made = shadowed(main, shadows)
    placed = drive(made, 60)
    assert [shadow.seat.name for shadow in made.chooser.shadows] == shadows
    for shadow in made.chooser.shadows:
        assert shadow.verdicts.total() == placed
        assert shadow.regret >= 0.0
