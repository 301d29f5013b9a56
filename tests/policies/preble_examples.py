"""Preble on a few workers, and prompts of one document."""

from __future__ import annotations

from engines.model.roofline import Roofline
from engines.model.specs import GPUS, MODELS
from router.core.request import Request
from router.core.worker import StepModel
from router.policies.preble import Preble
from tests.policies.examples import NOW
from tests.policies.prefix_examples import Fleet, asking, tokens

A6000 = Roofline(MODELS["mistral-7b"], GPUS["a6000"])

# Affine through 2,000 and 21,000 tokens of the roofline; a decode step alone lasts 24 ms.
PER_TOKEN_S = (A6000.step_s([(21_000, 0)], []) - A6000.step_s([(2_000, 0)], [])) / 19_000
STEP = StepModel(0.0, PER_TOKEN_S, 23.6e-3, 0.0, 0.213e-6)
SYSTEM, DOCUMENT = tokens("s", 13), tokens("d", 21_000)


def question(letter: str, sequence: int, **what: object) -> Request:
    return asking(SYSTEM + DOCUMENT + tokens(letter, 1_987), sequence, **what)


def preble(fleet: Fleet) -> Preble:
    assert isinstance(fleet.policy, Preble)
    return fleet.policy


def with_document(count: int = 4, *, at: int = 2, **params: object) -> Fleet:
    """Worker `at` holds system prompt and document, all others the system prompt."""
    fleet = Fleet("preble", count, step=STEP, **params)
    for number in range(count):
        text = SYSTEM + (DOCUMENT if number == at else "") + tokens(str(number), 10)
        fleet.serve(asking(text, number, max_tokens=1), NOW - 500, to=number)
    preble(fleet).window.expire(NOW)
    return fleet


def loads(fleet: Fleet, now: float = NOW) -> list[float]:
    """L of each worker, by picks among each alone."""
    nothing = asking("", 99, prompt_tokens=0)
    return [fleet.pick(nothing, now, among=[n]).cost for n in range(len(fleet.workers))]
