"""Asks what the gates judge: fixed lengths twice, and greedy answers of every way to be served."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from router.settings.calibration_file import GateResult
from router.studies.calibrate.fleet import Couple
from router.studies.calibrate.gates import (
    Counted,
    judge_counts,
    judge_greedy,
    judge_tokenizers,
)
from router.studies.calibrate.jobs import Job, run_apart
from router.studies.calibrate.probe import Ask
from router.studies.calibrate.prompts import GREEDY_PROMPTS
from router.studies.calibrate.subject import Subject, Ways
from router.studies.calibrate.way import Way, hardware_of

_GREEDY_TOKENS = 48
_ASKED_TOKENS = (7, 16)
"""Two lengths, so that a limit which happens to be one of them is noticed."""


@dataclass(slots=True)
class _Answers:
    """Of one way."""

    name: str
    model: str
    counted: list[Counted] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)


async def ask_gates(subjects: Sequence[Subject], ways: Ways, couples: Sequence[Couple]) -> list[GateResult]:
    """The results of all gates. Raises ProbeFailed when an engine does not answer at all."""
    models = {subject.engine.name: subject.model for subject in subjects}
    asked: list[tuple[Way, str]] = [(one.way, one.model) for one in subjects if one.alone]
    asked += [(ways.over(couple), models[couple.decode.name]) for couple in couples]
    answers = [_Answers(way.name, model) for way, model in asked]
    # One after the other at each engine: what runs beside a greedy answer may change its rounding.
    jobs = [
        Job(hardware_of(way), partial(_ask, way, one)) for (way, _), one in zip(asked, answers, strict=True)
    ]
    await run_apart(jobs)
    gates = [judge_counts({one.name: one.counted for one in answers})]
    for model in dict.fromkeys(models.values()):
        mine = [one for one in answers if one.model == model]
        gates.append(judge_tokenizers({one.name: one.lengths for one in mine}))
        gates.append(judge_greedy({one.name: one.texts for one in mine}))
    return gates


async def _ask(way: Way, answers: _Answers) -> None:
    model = answers.model
    for tokens in _ASKED_TOKENS:
        told = await way.tell(Ask(model, GREEDY_PROMPTS[0], tokens))
        answers.counted.append(Counted(tokens, told.output_tokens, told.prompt_tokens))
    for prompt in GREEDY_PROMPTS:
        told = await way.tell(Ask(model, prompt, _GREEDY_TOKENS))
        answers.texts.append(told.text)
        answers.lengths.append(told.prompt_tokens)
