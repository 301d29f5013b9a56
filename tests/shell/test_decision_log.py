"""Laws of the decision log: every choice is in it, and from its record alone the choice is made again."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from router.core.binding import Mode
from router.core.explain import Row, Table
from router.core.lease import Lease, Outcome
from router.core.least_running import least_running
from router.core.offer import Offer, Placed
from router.core.pool import Pool
from router.core.recording import Recording
from router.core.request import Request
from router.core.step_model import StepModel
from router.policies import POLICIES, Shape, build
from router.telemetry.decision import DecisionRecord, MadeRecord, RoundRecord, read_decisions
from router.telemetry.decision_log import DecisionLog, DecisionLogSettings, OthersOnly
from router.telemetry.recompute import made_again, picked_again
from router.virtual.clock import run
from tests.core.fleet_examples import FirstWorker, Nobody, pool, request

SINGLE = [spec.name for spec in POLICIES.values() if spec.shape is Shape.ONE]
BATCH = [spec.name for spec in POLICIES.values() if spec.shape is Shape.BATCH]
STEP = StepModel(0.01, 1e-4, 0.02, 1e-4, 1e-7)


async def inline(call: Callable[[], None]) -> None:
    call()


def raises(error: Exception) -> None:
    raise error


def log_at(path: Path, sample: float = 1.0, **given: Any) -> DecisionLog:
    settings = DecisionLogSettings(path=path, sample=sample, **given)
    return DecisionLog(settings, lambda: 1_700_000_000.0, offload=inline)


def recorded(path: Path, made: Pool, traffic: Callable[[Pool], object], sample: float = 1.0) -> list[Any]:
    """What stands in the log after the traffic."""

    async def main() -> None:
        log = log_at(path, sample)
        made.chooser.recorder = Recording(log, raises)
        traffic(made)
        await log.aclose()

    run(main())
    return list(read_decisions(path))


def busy(made: Pool, *, seed: int = 3, count: int = 60) -> list[Lease]:
    """Requests of all lengths that come, wait, and end."""
    source, running, every = random.Random(seed), list[Lease](), list[Lease]()
    now = 1.0
    for number in range(count):
        now += source.expovariate(20.0)
        made.submit(
            request(
                f"{seed} {number}",
                sequence=number,
                arrived=now,
                prompt_tokens=source.choice([10, 500, 9_000]),
                max_tokens=source.choice([None, 50]),
                affinity=f"c{number % 5}",
                sequences=source.choice([1, 1, 2]),
            ),
            now,
        )
        placed = made.assign(now)
        running += placed
        every += placed
        for lease in running:
            made.progress(lease, now, generated_tokens=lease.generated_tokens + source.randrange(1, 40))
        while running and source.random() < 0.4:
            made.release(running.pop(source.randrange(len(running))), Outcome.OK, now)
    for lease in running:
        made.release(lease, Outcome.OK, now)
    return every


@pytest.mark.parametrize("name", SINGLE)
@pytest.mark.parametrize("step", [None, STEP])
def test_every_pick_is_made_again_from_its_record(name: str, step: StepModel | None, tmp_path: Path) -> None:
    made = pool(*"abcd", policy=build(name, {}, 7), queued_bytes=10**6)
    made.use(made.policy, name)
    for worker in made.roster:
        worker.step = step
    leases: list[Lease] = []
    records = recorded(tmp_path / "d", made, lambda made: leases.extend(busy(made)))
    assert [(r.id, r.worker, r.cost, r.reason) for r in records] == [
        (lease.request.id, lease.worker, lease.cost, lease.reason) for lease in leases
    ]
    for record in records:
        assert (record.policy, record.pool, record.seed) == (name, "p", 7)
        row = picked_again(record)
        assert row is not None
        assert (row.worker, row.total, row.reason) == (record.worker, record.cost, record.reason)
        assert record.unit == POLICIES[name].cost_unit
        assert record.params is not None


@pytest.mark.parametrize("name", BATCH)
@pytest.mark.parametrize("group", [None, "g"])
@pytest.mark.parametrize("step", [None, STEP])
def test_every_round_is_made_again_from_its_record(
    name: str, group: str | None, step: StepModel | None, tmp_path: Path
) -> None:
    made = pool(
        *"abcd", policy=build(name, {}, 7), slots=3, mode=Mode.LATE, queued_bytes=10**6, in_flight=500
    )
    made.use(made.policy, name)
    for worker in made.roster:
        worker.step, worker.barrier_group, worker.configured_kv_tokens = step, group, 40_000
        worker.barrier_peers = tuple(made.roster) if group is not None else ()
    records = recorded(tmp_path / "d", made, lambda made: busy(made, count=150))
    rounds = {record.number: record for record in records if isinstance(record, RoundRecord)}
    decisions = [record for record in records if isinstance(record, DecisionRecord)]
    assert len(rounds) > 30
    assert max(len(record.choices) for record in rounds.values()) > 1
    for record in rounds.values():
        assert made_again(record) == list(record.choices)
    for decided in decisions:
        assert decided.round is not None
        assert decided.table is None
        assert decided.id in {choice.id for choice in rounds[decided.round].choices}


def test_a_horizon_is_recalled_and_not_guessed(tmp_path: Path) -> None:
    name = "balance_route_h"
    made = pool(*"ab", policy=build(name, {"min_slot_use": 0.0}, 1), slots=4, mode=Mode.LATE, in_flight=500)
    made.use(made.policy, name)

    def traffic(made: Pool) -> None:
        for round_ in range(12):
            busy(made, seed=round_, count=40)

    records = recorded(tmp_path / "d", made, traffic)
    rounds = [record for record in records if isinstance(record, RoundRecord)]
    ahead = [record for record in rounds if record.memory.loads_ahead]
    assert len(ahead) > 20
    assert all(made_again(record) == list(record.choices) for record in rounds)
    changed = msgspec.structs.replace(ahead[-1], choices=(MadeRecord(id="x", worker="y", cost=0, reason=""),))
    assert made_again(changed) == list(ahead[-1].choices)


def test_only_a_sample_is_kept_whole_and_the_rest_has_the_best_others(tmp_path: Path) -> None:
    made = pool(*"abcde", policy=build("least_requests", {}, 0), queued_bytes=10**6, in_flight=1000)
    records = recorded(tmp_path / "d", made, lambda made: busy(made, count=600), sample=0.1)
    whole = [record for record in records if record.table is not None]
    assert 30 < len(whole) < 100
    for record in records:
        assert len(record.others) == 3
        costs = [other.cost for other in record.others]
        assert costs == sorted(costs)
        assert record.cost <= costs[0]
        assert record.worker not in {other.worker for other in record.others}


def test_what_is_placed_without_its_policy_is_made_again_too(tmp_path: Path) -> None:
    made = pool("a", "b", policy=build("least_tokens", {}, 0), queued_bytes=10**6)

    def traffic(made: Pool) -> None:
        for number in range(10):
            asked = request(f"r{number}")
            workers = made.eligible.open_to(asked)
            choice = least_running(asked, workers)
            made._place(Placed(asked, choice, Offer(workers)), 1.0)

    records = recorded(tmp_path / "d", made, traffic)
    assert {record.reason for record in records} == {"bypass"}
    for record in records:
        row = picked_again(record)
        assert row is not None
        assert row.worker == record.worker


def test_a_policy_that_cannot_tell_leaves_a_record_without_a_table(tmp_path: Path) -> None:
    made = pool("a", "b", policy=FirstWorker())
    (record,) = recorded(tmp_path / "d", made, lambda made: busy(made, count=1))
    assert (record.worker, record.others, record.table) == ("a", (), None)
    assert picked_again(record) is None


def test_a_record_says_nothing_of_the_prompt(tmp_path: Path) -> None:
    made = pool("a", policy=build("session_affinity", {}, 0))

    def traffic(made: Pool) -> None:
        made.submit(request("r", affinity="my secret session"), 1.0)
        made.assign(1.0)

    recorded(tmp_path / "d", made, traffic)
    assert "secret" not in (tmp_path / "d").read_text()


def test_without_a_log_the_best_others_are_found_all_the_same() -> None:
    made = pool(*"abcde", policy=build("least_requests", {}, 0))
    made.chooser.recorder = Recording(OthersOnly(), raises)
    made.submit(request(), 1.0)
    (lease,) = made.assign(1.0)
    assert len(lease.others) == 3
    assert lease.worker not in dict(lease.others)


def test_where_nobody_wants_to_know_nothing_is_compared_twice() -> None:
    made = pool("a", "b", policy=FirstWorker())
    made.submit(request(), 1.0)
    (lease,) = made.assign(1.0)
    assert lease.others == ()


def test_a_round_that_places_nobody_is_not_kept(tmp_path: Path) -> None:
    made = pool("a", policy=build("balance_route_0", {}, 0), slots=1, mode=Mode.LATE)
    made.submit(request("first"), 1.0)

    def traffic(made: Pool) -> None:
        made.assign(1.0)
        made.submit(request("second"), 1.0)
        made.assign(1.0)

    kinds = [type(record) for record in recorded(tmp_path / "d", made, traffic)]
    assert kinds == [RoundRecord, DecisionRecord]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no header"),
        ("{}\n", "no header"),
        ('{"format": "pointsman-decision-log"}\n', "no header"),
        ('{"format": "other", "version": 1}\n', "names the format"),
        ('{"format": "pointsman-decision-log", "version": 9}\n', "of version 9"),
        ('{"format": "pointsman-decision-log", "version": 1}\n{"kind": "decision"}\n', "line 2"),
    ],
)
def test_a_file_that_is_no_decision_log_is_refused(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "d").write_text(text)
    with pytest.raises(ValueError, match=words):
        list(read_decisions(tmp_path / "d"))


def test_a_line_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    made = pool("a", policy=build("random", {}, 0))
    assert len(recorded(tmp_path / "d", made, lambda made: busy(made, count=3))) == 3
    (tmp_path / "d").write_bytes((tmp_path / "d").read_bytes()[:-5])
    assert len(list(read_decisions(tmp_path / "d"))) == 2


def test_nobody_is_recorded_when_nobody_is_placed(tmp_path: Path) -> None:
    made = pool("a", policy=Nobody())
    assert recorded(tmp_path / "d", made, lambda made: busy(made, count=2)) == []


@pytest.mark.parametrize("where", ["explain", "decided", "round"])
def test_whoever_fails_to_record_a_decision_harms_none(where: str) -> None:
    class Broken(OthersOnly):
        def decided(self, decision: object) -> tuple[tuple[str, float], ...]:
            raise ZeroDivisionError

        def round(self, made: object) -> None:
            raise ZeroDivisionError

    class Mute(FirstWorker):
        def explain(self, *_args: object) -> None:
            raise ZeroDivisionError

    policy = {"explain": Mute(), "decided": FirstWorker(), "round": build("balance_route_0", {}, 0)}[where]
    made = pool("a", policy=policy, mode=Mode.LATE)
    broken: list[Exception] = []
    made.chooser.recorder = Recording(Broken(), broken.append)
    leases = busy(made, count=5)
    assert len(leases) == 5
    assert [type(error) for error in broken] == [ZeroDivisionError]


def test_a_table_with_a_number_that_cannot_be_written_is_left_out(tmp_path: Path) -> None:
    class Endless(FirstWorker):
        def explain(self, asked: Request, workers: Any, now: float) -> Table:
            rows = [Row(worker=w.name, total=1.0, terms={"rest_s": float("inf")}) for w in workers]
            return Table(unit="s", seed=0, sequence=0, rows=rows)

    made = pool("a", policy=Endless())
    (record,) = recorded(tmp_path / "d", made, lambda made: busy(made, count=1))
    assert record.table is None
