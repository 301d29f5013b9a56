"""One calibration from its options to its file: meet, judge, measure, fit, conclude.

Separate from the command line so that a test calibrates engines on a virtual network, in virtual time.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

from rich.console import Console

from router.settings.calibration_file import CalibrationFile, GateResult, TransferMeasured
from router.studies.calibrate.asking import ask_gates
from router.studies.calibrate.bench import Bench
from router.studies.calibrate.compose import Measured, compose, points_of
from router.studies.calibrate.fit import FitError
from router.studies.calibrate.fleet import MeasuredFleet
from router.studies.calibrate.grid import Effort
from router.studies.calibrate.handover import HandoverBench, Known
from router.studies.calibrate.jobs import Job, run_apart
from router.studies.calibrate.laws import prefill_law, step_law
from router.studies.calibrate.probe import Probe, ProbeFailed
from router.studies.calibrate.subject import Subject, Ways, meet
from router.studies.calibrate.tally import Tally
from router.studies.calibrate.verdict import CONTEXT_TOKENS, PROMPT_P90_TOKENS
from router.studies.calibrate.way import hardware_of, together
from router.studies.progress import watch
from router.upstream.client import Upstream

_BUSY = 0.7
"""Share of a core above which this client itself may have held up what it timed."""


class GatesFailed(Exception):
    """Engines did not pass; nothing was measured.

    Attributes:
        gates: all of them, those that were passed too.
    """

    def __init__(self, gates: Sequence[GateResult]) -> None:
        super().__init__("; ".join(gate.said for gate in gates if not gate.passed))
        self.gates = tuple(gates)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the user asked for.

    Attributes:
        run: differs between two calibrations.
        one_at_a_time: engines share hardware that nobody told of.
        despite_gates: measure engines that did not pass, too.
        prompt_tokens, context_tokens: of the expected workload: its 90th percentile prompt, and the mean
            context of a sequence while it is decoded.
    """

    fleet: MeasuredFleet
    run: str
    effort: Effort = field(default_factory=Effort)
    one_at_a_time: bool = False
    despite_gates: bool = False
    prompt_tokens: int = PROMPT_P90_TOKENS
    context_tokens: int = CONTEXT_TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What a calibration needs of the world.

    Attributes:
        now: the clock of every measurement (s, monotonic).
        wall: the time of day, with its zone.
        chance: where the names of KV transfers come from.
        cpu_s: processor seconds of this process so far; None when nobody measures them.
    """

    upstream: Upstream
    now: Callable[[], float]
    wall: Callable[[], datetime]
    console: Console
    chance: random.Random
    cpu_s: Callable[[], float] | None = None


async def calibrate(options: Options, world: World) -> CalibrationFile:
    """Measures a fleet.

    Cancelled, it ends every request that is under way, and nothing comes of it.

    Raises:
        GatesFailed: before anything was measured.
        ProbeFailed: an engine did not answer as it must.
    """
    tally = Tally()
    watcher = asyncio.get_running_loop().create_task(watch(tally, world.console))
    try:
        return await _Session(options, world, tally).run()
    finally:
        watcher.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watcher


class _Session:
    """State: what was measured so far."""

    def __init__(self, options: Options, world: World, tally: Tally) -> None:
        self._options = options
        self._world = world
        self._tally = tally
        self._measured: dict[str, Measured] = {}
        self._transfers: list[TransferMeasured] = []
        self._notes: list[str] = []

    async def run(self) -> CalibrationFile:
        began, spent = self._world.now(), self._cpu_s()
        probes = {
            e.name: Probe(self._world.upstream, e, self._world.now) for e in self._options.fleet.engines
        }
        ways = Ways(self._options.fleet, probes, self._world.chance)
        self._tally.doing["fleet"] = "getting to know it"
        subjects = await self._meet(ways)
        gates = await self._judge(subjects, ways)
        del self._tally.doing["fleet"]
        await self._bench(subjects)
        await self._hand_over(subjects, ways)
        self._watch_client(self._world.now() - began, self._cpu_s() - spent)
        return compose(
            self._world.wall(),
            list(self._measured.values()),
            self._transfers,
            gates,
            self._notes,
        )

    async def _meet(self, ways: Ways) -> list[Subject]:
        return await together(meet(engine, ways, self._options.run) for engine in self._options.fleet.engines)

    async def _judge(self, subjects: Sequence[Subject], ways: Ways) -> list[GateResult]:
        """The results of all gates. Raises GatesFailed unless failures are to be overlooked."""
        self._tally.doing["fleet"] = "gates"
        gates = await ask_gates(subjects, ways, self._options.fleet.couples)
        if not all(gate.passed for gate in gates) and not self._options.despite_gates:
            raise GatesFailed(gates)
        return gates

    async def _bench(self, subjects: Sequence[Subject]) -> None:
        options = self._options
        points = points_of(subjects, options.effort, options.prompt_tokens, options.context_tokens)
        jobs = []
        for subject in subjects:
            one = self._measured[subject.engine.name] = Measured(subject, points[subject.model])
            if not one.benched:
                continue
            bench = Bench(subject, options.effort, one.point, self._tally)
            jobs.append(Job(hardware_of(subject.way), partial(self._run_bench, bench, one)))
        await run_apart(jobs, one_at_a_time=options.one_at_a_time)

    async def _run_bench(self, bench: Bench, one: Measured) -> None:
        await bench.run()
        one.found = bench.found
        self._notes += bench.found.notes
        with _fitting(f"worker {one.subject.engine.name}"):
            one.step = step_law(bench.found.steps)
            one.prefill = prefill_law(bench.found.prefills) if bench.found.prefills else None

    async def _hand_over(self, subjects: Sequence[Subject], ways: Ways) -> None:
        by_name = {subject.engine.name: subject for subject in subjects}
        jobs = []
        for couple in self._options.fleet.couples:
            prefill, decode = by_name[couple.prefill.name], by_name[couple.decode.name]
            bench = HandoverBench(prefill, decode, ways.over(couple), self._options.effort, self._tally)
            jobs.append(Job(hardware_of(bench.way), partial(self._run_handover, bench)))
        await run_apart(jobs, one_at_a_time=self._options.one_at_a_time)

    async def _run_handover(self, bench: HandoverBench) -> None:
        prefill = self._measured[bench.prefill.engine.name]
        decode = self._measured[bench.decode.engine.name]
        with _fitting(bench.way.name):
            self._transfers.append(await bench.run(Known(prefill.prefill, decode.step)))
            if bench.prefills and prefill.prefill is None:
                prefill.found.prefills = bench.prefills
                prefill.prefill = prefill_law(bench.prefills)
        self._notes += bench.notes

    def _cpu_s(self) -> float:
        return 0.0 if self._world.cpu_s is None else self._world.cpu_s()

    def _watch_client(self, took_s: float, cpu_s: float) -> None:
        if took_s > 0 and cpu_s / took_s > _BUSY:
            self._notes.append(
                f"this client used {cpu_s / took_s:.0%} of a core, so steps of large batches may have seemed "
                "longer than they were; measure with --one-at-a-time, from a machine with less to do"
            )


@contextlib.contextmanager
def _fitting(whose: str) -> Iterator[None]:
    """Samples that no law can be fitted to are the fault of an engine that holds too little."""
    try:
        yield
    except FitError as error:
        raise ProbeFailed(f"{whose} cannot be measured, it may hold too little: {error}") from None
