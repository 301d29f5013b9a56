"""Measures how long KV takes from a prefill to a decode engine.

Separate from the bench of one engine, whose laws it needs: what is timed is the time to the first token, and
the step, and where the connector leaves it in the prefill, are taken off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from router.settings.calibration_file import PrefillLaw, StepLaw, TransferMeasured
from router.studies.calibrate.bench import unreset
from router.studies.calibrate.grid import Effort, transfer_lengths
from router.studies.calibrate.laws import Route, Timed, transfer_law
from router.studies.calibrate.subject import Subject
from router.studies.calibrate.tally import Tally
from router.studies.calibrate.way import HandedOver

_TOKENS = 2
"""Asked of the decode engine; only the first one is timed."""


@dataclass(slots=True)
class Known:
    """Laws of the engines of a pair; None where one does nothing by itself."""

    prefill: PrefillLaw | None
    step: StepLaw | None


@dataclass(slots=True)
class HandoverBench:
    """One pair on the bench.

    Attributes:
        prefills: of a pair whose prefill engine serves nothing alone: what handing over a prompt takes longer
            than handing it over again, when it is in that engine's cache.
        notes: what a reader of the figures should know.
    """

    prefill: Subject
    decode: Subject
    way: HandedOver
    effort: Effort
    tally: Tally
    prefills: list[Timed] = field(default_factory=list)
    notes: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.tally.plan((len(self._lengths) * self.effort.repeats + 2) * self._asks_each)

    @property
    def _lengths(self) -> list[int]:
        return transfer_lengths((self.prefill.room, self.decode.room), self.effort)

    @property
    def _asks_each(self) -> int:
        return 1 if self.prefill.alone else 2

    async def run(self, known: Known) -> TransferMeasured:
        """Warms the pair, then measures it. Raises ProbeFailed, and FitError when nothing can be fitted."""
        try:
            return await self._run(known)
        finally:
            self.tally.doing.pop(self.way.name, None)

    async def _run(self, known: Known) -> TransferMeasured:
        lengths = self._lengths
        await unreset(self.way)
        self.tally.doing[self.way.name] = "first hand-overs"
        first_s = await self._time(lengths[0], "first", known)
        await self._time(lengths[-1], "longest", known)
        self.prefills.clear()
        samples = []
        for length in lengths:
            self.tally.doing[self.way.name] = f"hand-over of {length} tokens"
            timed = [await self._time(length, number, known) for number in range(self.effort.repeats)]
            samples.append(_median(timed))
        self.prefills = _medians(self.prefills, self.effort.repeats)
        route = Route(self.prefill.engine.name, self.decode.engine.name, self.way.connector.name)
        return transfer_law(route, samples, first_s.seconds)

    async def _reset_decode(self) -> None:
        """So that KV is handed over a second time. Engines of SGLang cache no prefixes unless told to."""
        if not await self.decode.probe.reset_prefix_cache():
            self.notes.add(
                f"{self.decode.engine.name} did not empty its cache between two hand-overs of one prompt; "
                "where it caches prefixes, hand-overs seem to take less than they do"
            )

    async def _time(self, length: int, number: object, known: Known) -> Timed:
        """One hand-over of a fresh prompt."""
        prompt = self.decode.prompts.write(length, "handover", self.way.name, length, number)
        ask = self.decode.ask(prompt, _TOKENS)
        heard = await self.way.hear(ask)
        self.tally.step()
        seconds = heard.ttft_s
        if not self.prefill.alone:
            await self._reset_decode()
            cached = await self.way.hear(ask)
            self.tally.step()
            # A prompt from the cache still takes a forward pass, which reads the same weights as a step does.
            pass_s = _step_s(known.step, heard.prompt_tokens)
            self.prefills.append(Timed(heard.prompt_tokens, seconds - cached.ttft_s + pass_s))
            seconds = cached.ttft_s - pass_s
        elif self.way.connector.concurrent and known.prefill is not None:
            seconds -= known.prefill.seconds(heard.prompt_tokens)
        return Timed(heard.prompt_tokens, seconds - _step_s(known.step, heard.prompt_tokens))


def _step_s(law: StepLaw | None, kv_tokens: int) -> float:
    """A step with one sequence; nothing where there is no law."""
    return 0.0 if law is None else law.seconds(1, kv_tokens)


def _median(timed: Sequence[Timed]) -> Timed:
    return Timed(timed[0].tokens, median(one.seconds for one in timed))


def _medians(timed: Sequence[Timed], repeats: int) -> list[Timed]:
    """One for each length; those of one length follow one another."""
    return [_median(timed[start : start + repeats]) for start in range(0, len(timed), repeats)]
