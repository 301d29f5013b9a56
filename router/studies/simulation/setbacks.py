"""What becomes of a call when something failed: given back, tried again, or given up.

Separate from the courses of calls that go well. What is tried again, and where, is said by the tables of
`router.core.retry`; accounts are settled as the live router settles them.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from msgspec import structs

from router.core.errors import DeadlineExceeded, RouterError
from router.core.handover import Handover
from router.core.lease import Lease, Outcome
from router.core.retry import NOT_TAKEN, OUTCOMES, Failure
from router.core.retry import Leg as Half
from router.studies.simulation.life import Failed, Leg, Life
from router.studies.simulation.timeline import Timeline
from router.studies.simulation.trying import Trying

if TYPE_CHECKING:
    from router.studies.simulation.courses import Courses, Pair


class Setbacks:
    """Goes on where a course broke. No state of its own."""

    def __init__(self, courses: Courses, timeline: Timeline, trying: Trying) -> None:
        self._courses = courses
        self._timeline = timeline
        self._trying = trying

    # --- what happens ----------------------------------------------------------------------------------

    def lost(self, name: str) -> None:
        """A worker is gone, and all that ran there."""
        for leg in self._courses.reports.at(name):
            self._courses.reports.drop(leg)
            self._courses.reports.later(partial(self.failed, leg, Failure.NO_ANSWER, "reset the connection"))

    def kv_lost(self, name: str, job_id: str) -> None:
        """A decode engine did not get the KV of a job, which is lost with it."""
        leg = self._courses.reports.leg_of(name, job_id)
        if leg is not None:
            self._courses.reports.drop(leg)
            self._courses.reports.later(partial(self.failed, leg, Failure.SERVER_ERROR, "lost its KV"))

    def silent(self, name: str, since: float, after_s: float) -> None:
        """An engine hangs: streams that still do by then are ended."""
        for leg in self._courses.reports.at(name):
            self._timeline.at(since + after_s, partial(self._still_silent, leg, since))

    def _still_silent(self, leg: Leg, since: float) -> None:
        hall, name = self._courses.hall, leg.lease.worker
        if leg.started and leg.rank is hall.rank(name) and hall.stepper(name).stopped == since:
            self.failed(leg, Failure.TIMEOUT, "is silent")

    def late(self, leg: Leg) -> None:
        """A leg has taken longer than its phase may."""
        self.failed(leg, Failure.TIMEOUT, "is late")

    def waited_in_vain(self, life: Life) -> None:
        """Its answer has not begun in time. Whoever waits in a queue meets the patience of that."""
        for leg in life.legs[:1]:
            self.failed(leg, Failure.TIMEOUT, "is late")

    # --- a leg failed ----------------------------------------------------------------------------------

    def failed(self, leg: Leg, failure: Failure, reason: str) -> None:
        """Tries the call again, unless its client has seen something of it."""
        life = leg.life
        if leg.gone or life.record.outcome:
            return
        if life.record.first is not None:
            self._release(leg, OUTCOMES[failure], reason)
            self._courses.over(life, "broken")
        elif not life.request.split:
            self._whole(leg, failure, reason)
        elif self._courses.pair is not None:
            self._split(self._courses.pair, leg, failure, reason)

    def _whole(self, leg: Leg, failure: Failure, reason: str) -> None:
        courses, life = self._courses, leg.life
        rounds = courses.by_worker[leg.lease.worker]
        self._release(leg, OUTCOMES[failure], reason)
        life.legs = []
        life.failed = Failed(Half.DECODE, failure, leg.lease.worker)
        request = self._trying.whole(life, life.failed, rounds.pool)
        if request is None:
            courses.over(life, life.ending)
            return
        life.request = request
        courses.acquire(life, rounds, request)

    def _split(self, pair: Pair, leg: Leg, failure: Failure, reason: str) -> None:
        life, lease = leg.life, leg.lease
        half = Half.PREFILL if leg.prefill else Half.DECODE
        failed = Failed(half, failure, lease.worker)
        handover = life.handover
        if half is Half.DECODE:
            if handover is not None and not life.shown:
                self._not_shown(pair, leg, handover, failed)
                return
            failed = self._settle_decode(leg, failed, reason)
        else:
            self._release(leg, OUTCOMES[failure], reason)
        self._again(pair, life, failed)

    def _settle_decode(self, leg: Leg, failed: Failed, reason: str) -> Failed:
        """The hand-over was shown and its KV not read, as far as anybody knows: then the pair is to blame."""
        life, producer = leg.life, leg.lease.prefill
        taken = failed.failure not in NOT_TAKEN
        if not taken and producer is not None:
            failed = replace(failed, producer=producer.worker)
        self._release(leg, OUTCOMES[failed.failure] if taken else Outcome.HANDOVER, reason)
        if not taken and life.handover is not None and life.times is not None and self._courses.pair:
            budget, prefill = self._courses.pair.splitting.partners.budget, life.handover.prefill
            budget.strand(prefill.worker, prefill.incarnation, prefill.prompt_tokens, life.times.held_until)
        return failed

    def _not_shown(self, pair: Pair, leg: Leg, handover: Handover, failed: Failed) -> None:
        """Nothing was sent: another decode worker may have the hand-over."""
        courses, life, lease = self._courses, leg.life, leg.lease
        self._drop(leg)
        pair.decode.pool.hand_back(lease, OUTCOMES[failed.failure], self._timeline.now, "took no connection")
        courses.wake()
        life.legs = []
        life.undelivered = failed
        if not self._trying.at_another_decoder(life):
            self._again(pair, life, failed)
            return
        request = lease.request
        avoid = request.avoid | {lease.worker}
        courses.acquire(life, pair.decode, structs.replace(request, avoid=avoid, attempt=request.attempt + 1))

    # --- hand-overs ------------------------------------------------------------------------------------

    def is_stale(self, handover: Handover) -> bool:
        """Whether the KV may not be there any more."""
        pair = self._courses.pair
        lease = handover.prefill
        worker = None if pair is None else pair.prefill.pool.roster.workers.get(lease.worker)
        reborn = worker is not None and worker.incarnation != lease.incarnation
        return reborn or self._timeline.now >= handover.dispatch_by

    def expired(self, life: Life, lease: Lease) -> None:
        """A decode worker was found when it was too late."""
        pair, handover = self._courses.pair, life.handover
        if pair is not None and handover is not None:
            pair.decode.pool.hand_back(lease, Outcome.CANCELLED, self._timeline.now)
            late = self._timeline.now >= handover.dispatch_by
            error = DeadlineExceeded("It is too late.", phase="transfer", sent=False) if late else None
            self.undelivered(life, handover, error)

    def undelivered(self, life: Life, handover: Handover, error: RouterError | None) -> None:
        """No decode worker gets the KV. When the call's own time is over, there is none left for another
        prefill."""
        pair, times = self._courses.pair, life.times
        own = times is not None and handover.dispatch_by < times.dispatch_by
        if pair is None or (own and isinstance(error, DeadlineExceeded)):
            self._courses.over(life, "deadline_exceeded")
            return
        self._again(pair, life, life.undelivered or Failed(Half.DECODE, Failure.HANDLE_EXPIRED, ""))

    def _again(self, pair: Pair, life: Life, failed: Failed) -> None:
        """From the start, at other workers, or not at all."""
        self.give_back(life, Outcome.CANCELLED, "the other leg failed")
        life.failed, late = failed, self._timeline.now >= life.answer_by
        request = self._trying.split(life, failed, pair.splitting, late=late)
        if request is None:
            self._courses.over(life, life.ending)
            return
        life.request = request
        self._courses.place(life)

    # --- giving back -----------------------------------------------------------------------------------

    def give_back(self, life: Life, outcome: Outcome, reason: str) -> None:
        """Settles what a call holds, and has engines let go of it."""
        for leg in life.legs:
            self._release(leg, outcome, reason)
        life.legs = []
        handover, wires = life.handover, self._courses.reports.wires
        if handover is not None:
            self._courses.by_worker[handover.producer].release(handover.prefill, Outcome.OK)
        if wires is not None:
            held = life.times.held_until if life.shown and life.times is not None else self._timeline.now
            wires.let_go(life.request.id, held)
        life.handover, life.times, life.shown, life.undelivered = None, None, False, None
        self._courses.wake()

    def _release(self, leg: Leg, outcome: Outcome, reason: str) -> None:
        if not leg.gone:
            self._drop(leg)
            self._courses.by_worker[leg.lease.worker].release(leg.lease, outcome, reason)
            self._courses.wake()

    def _drop(self, leg: Leg) -> None:
        """Nobody waits for the jobs of a leg any more."""
        for job_id in self._courses.reports.drop(leg):
            self._courses.hall.abort(leg.rank, job_id)

    def __repr__(self) -> str:
        return f"<Setbacks of {self._courses!r}>"
