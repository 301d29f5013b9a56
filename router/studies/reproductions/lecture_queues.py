"""Queues without tokens: what counting, work and the age of information are worth."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from router.studies.reproductions.parts import Under, bins_run, queue_run
from router.studies.reproductions.study import Claim, Findings, Part, Results, Row, Size, Study, mean

SOURCE = "Lecture on load balancing and routing (Preble and LLMSelector)"
_NAMES = {
    "random": "random",
    "round_robin": "round robin",
    "power_of_two": "two choices",
    "least_requests": "shortest queue",
    "least_work": "least work",
}


# --- the classic table ------------------------------------------------------------------------------------

_PUBLISHED = {("random", False): 11.56}
_IDEAL_RANDOM_S = 10.0


def _classic_parts(size: Size) -> dict[str, Part]:
    jobs = size.pick(5_000, 50_000)
    return {
        f"{policy} {'heavy' if heavy else 'exp'}/1": partial(queue_run, Under(policy=policy), heavy, jobs)
        for heavy in (False, True)
        for policy in _NAMES
    }


def _classic(results: Results) -> Findings:
    def of(policy: str, tail: str, figure: str = "mean_s") -> float:
        return mean(results, f"{policy} {tail}", figure)

    rows = [
        Row(
            f"{name}, {tail}, {figure}",
            of(policy, tail, key),
            _PUBLISHED.get((policy, tail == "heavy" or key != "mean_s")),
        )
        for tail in ("exp", "heavy")
        for policy, name in _NAMES.items()
        for figure, key in (("mean", "mean_s"), ("P99", "p99_s"))
    ]
    rows.insert(0, Row("random, exp, mean, by theory 1 / (1 − ρ)", of("random", "exp"), _IDEAL_RANDOM_S))
    return Findings(rows, _classic_claims(of))


def _classic_claims(of: Callable[..., float]) -> list[Claim]:
    return [
        Claim(
            "round robin takes about half of random's time",
            of("round_robin", "exp") / of("random", "exp"),
            0.35,
            0.75,
        ),
        Claim(
            "two choices take a third of random's or less",
            of("power_of_two", "exp") / of("random", "exp"),
            0.15,
            0.45,
        ),
        Claim(
            "the shortest queue hardly queues (mean, service times)", of("least_requests", "exp"), 1.0, 2.0
        ),
        Claim(
            "under a heavy tail round robin is little better than random",
            of("round_robin", "heavy") / of("random", "heavy"),
            0.5,
            1.3,
        ),
        Claim(
            "under a heavy tail the shortest queue has a higher P99 than least work",
            of("least_requests", "heavy", "p99_s") / of("least_work", "heavy", "p99_s"),
            1.02,
            2.0,
        ),
    ]


CLASSIC = Study(
    name="classic_table",
    title="The classic table",
    source=SOURCE,
    setting="16 servers, first come, first served, each at 0.9 of what it can do, mean service time 1 s; "
    "exponential, or 95 % of 0.5 s and 5 % of 10.5 s.",
    parts=_classic_parts,
    find=_classic,
    word="The order is the lecture's in both columns. Its single figure for random, 11.56, is one run of"
    " 50,000 jobs; theory says 10, and at 0.9 of capacity a run has to be long to come near it. The"
    " rest of its table is told in words only (round robin half of random; random and round robin "
    "alike under a heavy tail; the P99 of the shortest queue clearly above that of least work), and"
    " all of them hold here.",
)


# --- balls in bins ----------------------------------------------------------------------------------------


def _bins_parts(size: Size) -> dict[str, Part]:
    trials = size.pick(1, 5)
    return {
        f"{bins} bins, {choices}/1": partial(bins_run, bins, choices, trials)
        for bins in (1_000, 100_000)
        for choices in (1, 2)
    }


def _bins(results: Results) -> Findings:
    def of(bins: int, choices: int) -> float:
        return mean(results, f"{bins} bins, {choices}", "fullest")

    rows = [
        Row("1,000 bins, one choice", of(1_000, 1), 5.4),
        Row("1,000 bins, two choices", of(1_000, 2), 3.0),
        Row("100,000 bins, one choice", of(100_000, 1), 8.2),
        Row("100,000 bins, two choices", of(100_000, 2), 3.4),
    ]
    claims = [
        Claim("one choice, 100,000 bins", of(100_000, 1), 6.0, 10.0),
        Claim("two choices, 100,000 bins", of(100_000, 2), 3.0, 4.0),
        Claim(
            "two choices grow less with the bins than one does",
            (of(100_000, 2) - of(1_000, 2)) / (of(100_000, 1) - of(1_000, 1)),
            0.0,
            0.6,
        ),
    ]
    return Findings(rows, claims)


BINS = Study(
    name="balls_in_bins",
    title="Balls in bins",
    source=SOURCE,
    setting="As many balls as bins; each goes into the emptiest of one or two bins drawn at random. The "
    "fullest bin at the end.",
    parts=_bins_parts,
    find=_bins,
    word="The asymptotic formulas give 4.71 and 3.53 for 100,000 bins: the one for a single choice "
    "converges so slowly that both the lecture and this run lie far above it. What carries over to "
    "routers is the growth.",
)


# --- stale information ------------------------------------------------------------------------------------

_PERIODS = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)


def _stale_parts(size: Size) -> dict[str, Part]:
    jobs = size.pick(5_000, 50_000)
    parts: dict[str, Part] = {
        f"{policy} {period:g}/1": partial(queue_run, Under(policy=policy), False, jobs, period)
        for policy in ("least_requests", "power_of_two")
        for period in _PERIODS
    }
    parts["random/1"] = partial(queue_run, Under(policy="random"), False, jobs)
    return parts


def _stale(results: Results) -> Findings:
    random = mean(results, "random", "mean_s")
    shortest = {period: mean(results, f"least_requests {period:g}", "mean_s") for period in _PERIODS}
    two = {period: mean(results, f"power_of_two {period:g}", "mean_s") for period in _PERIODS}
    rows = [
        *(Row(f"shortest queue, looks every {period:g} s", shortest[period]) for period in _PERIODS),
        *(Row(f"two choices, looks every {period:g} s", two[period]) for period in _PERIODS),
        Row("random", random),
    ]
    claims = [
        Claim("with looks every 2 s the shortest queue still beats random", shortest[2.0] / random, most=1.0),
        Claim(
            "with looks every 4 s it is worse than random: the cross-over", shortest[4.0] / random, least=1.0
        ),
        Claim("two choices hardly suffer from looks every 4 s", two[4.0] / two[0.0], 0.9, 2.2),
    ]
    return Findings(rows, claims)


STALE = Study(
    name="stale_information",
    title="Stale information",
    source=SOURCE,
    setting="As the classic table with exponential service times; policies see the servers as they were at "
    "the last look. Mean time in service times.",
    parts=_stale_parts,
    find=_stale,
    word="The lecture puts the cross-over with random at a look every four service times and calls two "
    "choices almost unaffected; its figures are in a plot that is not to be had. The live router "
    "decides by its own ledger, which is never stale, and uses polled figures only to correct it.",
)
