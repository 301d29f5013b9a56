"""Measures one engine: its prefill curve, then its decode steps.

Separate from the laws that are fitted to what is found here, and from the order in which engines take turns.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

from router.studies.calibrate.grid import Effort, Ladder, ladders, prefill_lengths
from router.studies.calibrate.laws import Timed
from router.studies.calibrate.plateau import (
    SETTLING_STEPS,
    StepSample,
    Stream,
    lead_tokens,
    read_plateau,
)
from router.studies.calibrate.probe import Heard
from router.studies.calibrate.subject import Subject
from router.studies.calibrate.tally import Tally
from router.studies.calibrate.verdict import OperatingPoint
from router.studies.calibrate.way import Way, together

_LEAD_TOKENS = 16
"""Tokens that each answer of a batch has beyond the plateau: requests do not arrive at one moment."""
_MOST_LEAD_TOKENS = 256
_FILLED_AT_ONCE = 8


@dataclass(slots=True)
class Found:
    """What was measured of one engine.

    Attributes:
        notes: what a reader of the figures should know.
    """

    prefills: list[Timed] = field(default_factory=list)
    steps: list[StepSample] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class Bench:
    """One engine on the bench.

    Args:
        point: where the fleet is expected to work; it is among what is measured.
        tally: told of every measurement.
    """

    def __init__(self, subject: Subject, effort: Effort, point: OperatingPoint, tally: Tally) -> None:
        self.found = Found()
        self._subject = subject
        self._effort = effort
        self._tally = tally
        self._speculates = False
        output = output_tokens(effort)
        self._lengths = prefill_lengths(subject.room, effort, point.prompt_tokens) if subject.alone else []
        self._ladders = ladders(subject.room, effort, output, (point.sequences, point.context_tokens))
        tally.plan(len(self._lengths) * (effort.repeats + 1))
        tally.plan(sum(len(ladder.sequences) + 1 for ladder in self._ladders))

    async def run(self) -> None:
        """Measures all of it. Raises ProbeFailed."""
        name = self._subject.engine.name
        try:
            await self._reset()
            await self._prefills()
            await self._reset()
            self._speculates = await self._asks_whether_it_speculates()
            for ladder in self._ladders:
                await self._ladder(ladder)
        finally:
            self._tally.doing.pop(name, None)

    def _say(self, what: str) -> None:
        self._tally.doing[self._subject.engine.name] = what

    async def _reset(self) -> None:
        for name in await unreset(self._subject.way):
            note = f"{name} did not reset its prefix cache, so prompts that nobody has seen before had to do"
            if note not in self.found.notes:
                self.found.notes.append(note)

    # --- prefill --------------------------------------------------------------------------------------

    async def _prefills(self) -> None:
        """The first time of each length does not count: some engines compile for every length."""
        for length in self._lengths:
            heard = []
            for number in range(self._effort.repeats + 1):
                self._say(f"prefill of {length} tokens")
                prompt = self._subject.prompts.write(length, "prefill", length, number)
                heard.append(await self._subject.way.hear(self._subject.ask(prompt, 1)))
                self._tally.step()
            counted = heard[1:]
            self.found.prefills.append(Timed(counted[0].prompt_tokens, median(one.ttft_s for one in counted)))

    # --- decode ---------------------------------------------------------------------------------------

    async def _asks_whether_it_speculates(self) -> bool:
        """An engine that has decoded, for the gates at least, tells how many tokens a step gave."""
        stats = await self._subject.probe.stats()
        return stats is not None and stats.tokens_per_step is not None

    async def _ladder(self, ladder: Ladder) -> None:
        """All batches of one context, over the same prompts: they are prefilled once and then cached."""
        most = ladder.sequences[-1]
        self._say(f"prefill of {most} × {ladder.context_tokens} tokens")
        prompts = [
            self._subject.prompts.write(ladder.context_tokens, "decode", ladder.context_tokens, number)
            for number in range(most)
        ]
        for start in range(0, most, _FILLED_AT_ONCE):
            few = prompts[start : start + _FILLED_AT_ONCE]
            await together(self._subject.way.tell(self._subject.ask(prompt, 1)) for prompt in few)
        self._tally.step()
        for place, size in enumerate(ladder.sequences):
            self._say(f"decode of {size} × {ladder.context_tokens} tokens")
            samples = [await self._batch(ladder, prompts[:size]) for _ in range(self._effort.batches)]
            self._tally.step()
            good = sorted((one for one in samples if one is not None), key=lambda one: one.step_s)
            if len(good) <= len(samples) // 2:
                self._gave_up(ladder, size)
                self._tally.step(len(ladder.sequences) - place - 1)
                return
            self.found.steps.append(good[len(good) // 2])

    async def _batch(self, ladder: Ladder, prompts: list[str]) -> StepSample | None:
        """One batch, a second time with longer answers when its requests began too far apart; None when they
        did not run side by side."""
        lead, room = _LEAD_TOKENS, self._subject.room
        for _ in range(2):
            wanted = self._effort.steps + SETTLING_STEPS + lead
            if not room.fits(len(prompts), ladder.context_tokens, wanted):
                return None
            asks = [self._subject.ask(prompt, wanted) for prompt in prompts]
            heard = await together(self._subject.way.hear(ask) for ask in asks)
            streams = [self._stream(one, wanted) for one in heard]
            sample = read_plateau(streams, self._effort.steps // 2, speculates=self._speculates)
            if sample is not None:
                return sample
            lead = min(lead_tokens(streams), _MOST_LEAD_TOKENS) + _LEAD_TOKENS
        return None

    def _stream(self, heard: Heard, wanted: int) -> Stream:
        if heard.output_tokens != wanted:
            raise self._subject.way.answering.failure(
                f"generated {heard.output_tokens} tokens where {wanted} were asked for with ignore_eos"
            )
        return Stream(heard.times, heard.prompt_tokens, heard.output_tokens)

    def _gave_up(self, ladder: Ladder, size: int) -> None:
        self.found.notes.append(
            f"{self._subject.engine.name} did not run {size} sequences of {ladder.context_tokens} tokens "
            "side by side, so larger batches were left out; is max_num_seqs lower, or its KV in use?"
        )


async def unreset(way: Way) -> list[str]:
    """Empties the prefix caches of all engines on a way; the names of those that did not."""
    return [probe.engine.name for probe in way.probes if not await probe.reset_prefix_cache()]


def output_tokens(effort: Effort) -> int:
    """Tokens that each sequence of a batch generates, unless its requests begin far apart."""
    return effort.steps + SETTLING_STEPS + _LEAD_TOKENS
