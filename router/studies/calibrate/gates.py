"""What an engine has to pass before its times mean anything: exact counts, and the answers of its peers.

Separate from the asking. A gate never guesses: it names who differs from whom, and by what.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from router.settings.calibration_file import GateResult

COUNTS = "token counts"
EQUAL_COUNTS = "equal tokenizers"
GREEDY = "greedy answers"

_SHOWN = 24
"""Characters of an answer that are quoted where two part."""


@dataclass(frozen=True, slots=True)
class Counted:
    """One answer to a question whose length was fixed."""

    asked_tokens: int
    output_tokens: int
    prompt_tokens: int


Texts = Sequence[str]


def judge_counts(answers: Mapping[str, Sequence[Counted]]) -> GateResult:
    """Whether every answer has as many tokens as were asked for, and a prompt sent twice counts the same.

    Args:
        answers: those of each way to be served, to one prompt.
    """
    faults: dict[str, str] = {}
    for name, counted in answers.items():
        wrong = next((one for one in counted if one.output_tokens != one.asked_tokens), None)
        lengths = sorted({one.prompt_tokens for one in counted})
        if wrong is not None:
            faults[name] = (
                f"{name} counts {wrong.output_tokens} output tokens where {wrong.asked_tokens} were asked "
                "for with ignore_eos; is it another engine's API, or a limit of its own?"
            )
        elif len(lengths) > 1:
            faults[name] = f"{name} counts {' and '.join(map(str, lengths))} tokens for one prompt"
    return _result(COUNTS, faults)


def judge_tokenizers(lengths: Mapping[str, Sequence[int]]) -> GateResult:
    """Whether all engines of a model count the tokens of the same prompts alike."""
    odd = _odd({name: tuple(counts) for name, counts in lengths.items()})
    usual = _usual({name: tuple(counts) for name, counts in lengths.items()})
    faults = {
        name: f"{name} counts {_listed(lengths[name])} tokens for prompts of which others count "
        f"{_listed(usual)}; it has another tokenizer, so another model"
        for name in odd
    }
    return _result(EQUAL_COUNTS, faults)


def judge_greedy(texts: Mapping[str, Texts]) -> GateResult:
    """Whether the greedy answers of all ways to be served are the same, character by character.

    The rarer answer is wrong; when no answer is more frequent than another, all are suspect.
    """
    found = {name: tuple(answers) for name, answers in texts.items()}
    usual = _usual(found)
    faults = {name: _parting(name, found[name], usual) for name in _odd(found)}
    return _result(GREEDY, faults)


def _odd(found: Mapping[str, tuple[object, ...]]) -> list[str]:
    """Those whose answers are not the most frequent ones; all, when no answers are."""
    ranked = Counter(found.values()).most_common(2)
    if len(ranked) < 2:
        return []
    tied = ranked[0][1] == ranked[1][1]
    return [name for name, one in found.items() if tied or one != ranked[0][0]]


def _usual(found: Mapping[str, tuple[object, ...]]) -> tuple[object, ...]:
    return Counter(found.values()).most_common(1)[0][0] if found else ()


def _parting(name: str, mine: tuple[object, ...], usual: tuple[object, ...]) -> str:
    """Where the answers of one part from the usual ones."""
    for number, (own, theirs) in enumerate(zip(mine, usual, strict=True), 1):
        if own != theirs:
            at = _alike(str(own), str(theirs))
            return (
                f"{name} answers greedy prompt {number} with {str(own)[at : at + _SHOWN]!r} from character "
                f"{at} on, where others say {str(theirs)[at : at + _SHOWN]!r}; "
                "compare model root, revision, quantisation and engine version"
            )
    return f"{name} has the answers that others part from; which of them is right cannot be told"


def _alike(one: str, other: str) -> int:
    """Characters at the beginning that are the same."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _listed(counts: Sequence[object]) -> str:
    return ", ".join(map(str, counts))


def _result(name: str, faults: Mapping[str, str]) -> GateResult:
    return GateResult(name=name, passed=not faults, workers=tuple(faults), said="; ".join(faults.values()))
