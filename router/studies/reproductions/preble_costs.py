"""What each term of Preble's cost is worth: L, M and P.

Separate from the other studies of Preble because it looks into decisions, where those look at their results.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from router.core.policy import Choice
from router.core.request import Request
from router.core.worker import WorkerView
from router.policies.preble import SPEC, Parameters, Preble
from router.studies.reproductions.lecture_queues import SOURCE
from router.studies.reproductions.parts import Prompts
from router.studies.reproductions.study import (
    Claim,
    Findings,
    Measures,
    Part,
    Results,
    Row,
    Size,
    Study,
    mean,
)
from router.studies.setups import PREBLE_A6000, Choosing
from router.studies.simulation.run import Simulation

_TERMS = ("load_s", "eviction_s", "prefill_s")
"""L, M and P, as the policy names them when it is asked why."""
_CHARGES = {"as in the paper": "single_stream", "as it is by default": "marginal"}
_CALLS = {"toolbench": (1_000, 3_000), "video_qa": (400, 1_200), "long_document": (300, 800)}


@dataclass(slots=True)
class Watched(Preble):
    """The policy, and the terms of all workers that it compared, by decision."""

    compared: list[list[tuple[float, ...]]] = field(default_factory=list, init=False, repr=False)

    def pick(self, request: Request, workers: Sequence[WorkerView], now: float) -> Choice:
        rows = self.explain(request, workers, now).rows
        self.compared.append([tuple(row.terms[term] for term in _TERMS) for row in rows if row.tier == 0])
        return Preble.pick(self, request, workers, now)


def costs_run(charge: str, prompts: Prompts, seed: int = 1) -> Measures:
    """Means of the terms over all costs that were compared, and how often one of them decides."""
    params = SPEC.check({"decode_charge": charge, "pairing": "off"})
    assert isinstance(params, Parameters)
    policy = Watched(params, seed)
    plan = PREBLE_A6000.plan(Choosing(policy="preble"))
    simulation = Simulation(plan, prompts.made(seed), seed)
    simulation.rounds[0].pool.use(policy, "preble")
    simulation.run()
    costs = [cost for compared in policy.compared for cost in compared]
    contested = [compared for compared in policy.compared if len(compared) > 1]
    means = {term: math.fsum(cost[n] for cost in costs) / len(costs) for n, term in enumerate(_TERMS)}
    decides = {
        f"{term} decides": sum(_decides(n, compared) for compared in contested) / len(contested)
        for n, term in enumerate(_TERMS)
    }
    return {**means, **decides}


def _decides(term: int, compared: Sequence[tuple[float, ...]]) -> bool:
    """Whether others are the cheapest without this term."""
    whole = [math.fsum(cost) for cost in compared]
    rest = [math.fsum(cost[:term] + cost[term + 1 :]) for cost in compared]
    return [cost == min(whole) for cost in whole] != [cost == min(rest) for cost in rest]


def _parts(size: Size) -> dict[str, Part]:
    parts: dict[str, Part] = {}
    for family, calls in _CALLS.items():
        prompts = Prompts(
            family=family,
            calls=size.pick(*calls),
            rate=PREBLE_A6000.rates[family],
            keys=300 if family == "long_document" else None,
        )
        for name, charge in _CHARGES.items():
            parts[f"{family}, {name}/1"] = partial(costs_run, charge, prompts)
    return parts


def _find(results: Results) -> Findings:
    def of(family: str, name: str, figure: str) -> float:
        return mean(results, f"{family}, {name}", figure)

    paper, ours = _CHARGES
    dwarfed = [
        of(family, paper, "load_s") / of(family, paper, term)
        for family in _CALLS
        for term in _TERMS[1:]
        if of(family, paper, term)
    ]
    rows = [
        *(
            Row(f"{family}, decode charged {name}, {letter} (s)", of(family, name, term))
            for family in _CALLS
            for name in _CHARGES
            for letter, term in zip("LMP", _TERMS, strict=True)
        ),
        Row("charged as in the paper, L over M or P, lowest", min(dwarfed), 40.0),
        Row("charged as in the paper, L over M or P, highest", max(dwarfed), 20_000.0),
        *(
            Row(
                f"{family}, decode charged {name}, decisions that {letter} decides",
                of(family, name, f"{term} decides"),
            )
            for family in _CALLS
            for name in _CHARGES
            for letter, term in zip("LMP", _TERMS, strict=True)
        ),
    ]
    claims = [
        Claim("charged as in the paper, L dwarfs the others everywhere", min(dwarfed), least=10.0),
        Claim(
            "and decides where P does not (tool calls)",
            of("toolbench", paper, "load_s decides") - of("toolbench", paper, "prefill_s decides"),
            least=0.1,
        ),
        Claim(
            "charged at the margin, L is less of it",
            max(of(family, ours, "load_s") / of(family, paper, "load_s") for family in _CALLS),
            most=1.0,
        ),
    ]
    return Findings(rows, claims)


COSTS = Study(
    name="preble_costs",
    title="The terms of E2's cost",
    source=SOURCE,
    setting="4 workers, Mistral-7B on an A6000 each; the rates at which round robin is about to collapse; "
    "means over all costs that were compared. A term decides where without it "
    "others would have been the cheapest.",
    parts=_parts,
    find=_find,
    word="The lecture finds L 40 to 20,000 times M and P, and hardly any evictions that cost something. L "
    "dwarfs the others here, too; the lowest ratio is of documents, whose prefill takes seconds, and "
    "depends on how full the window of three minutes has become, the highest of tool calls, for which "
    "next to nothing that is of use is ever evicted. Charged at the margin, as it is by "
    "default, L of tool calls is a tenth of that. Which worker is the cheapest is decided by L in "
    "nearly all comparisons either way, by M in some of documents, and by P in hardly any: of those "
    "that hold a prefix all miss the same.",
)
