"""What each signal of calibrated prices is worth, and which load they suit."""

from __future__ import annotations

from functools import partial

from router.studies.reproductions.calibrated import (
    FLEET,
    LEAST_REQUESTS,
    RATE,
    RIVALS,
    SOURCE,
    calls_in,
    seeded,
)
from router.studies.reproductions.parts import Mix, Pair, Under, mix_run
from router.studies.reproductions.study import Claim, Findings, Part, Results, Row, Size, Study, mean, present
from router.studies.setups import CALIBRATED_A40

# --- signals ----------------------------------------------------------------------------------------------

_ALL = "all signals"
_BLIND = "no predicted output: the mean of all"
_COUNTED_PREFILLS = "no prompt length: prefills by count"


def _paper(**params: object) -> Under:
    """The paper's sum, whose every term has a weight."""
    return Under(policy="calibrated", params={"form": "paper", "operating_concurrency": 64, **params})


_SIGNALS: dict[str, tuple[Under, float | None, Under | None]] = {
    _ALL: (_paper(), 0.0, None),
    _BLIND: (_paper(), None, None),
    _COUNTED_PREFILLS: (_paper(), 0.0, LEAST_REQUESTS),
    "no backlog in seconds": (_paper(backlog_weight=0), 0.0, None),
    "no cache pressure": (_paper(pressure_weight=0), 0.0, None),
    "no class of service": (_paper(tight_sigma=1), 0.0, None),
    "hardly any count of requests": (_paper(queue_weight_s=0.001), 0.0, None),
    "counts alone": (LEAST_REQUESTS, 0.0, None),
}
"""A policy, the error of what it is told of outputs (None: it is told nothing), and who chooses prefills."""
_SMALL_SIGNALS = (_ALL, _BLIND, _COUNTED_PREFILLS, "counts alone")


def _signal_parts(size: Size) -> dict[str, Part]:
    parts: dict[str, Part] = {}
    for name in _SIGNALS if size is Size.FULL else _SMALL_SIGNALS:
        under, noise, prefills = _SIGNALS[name]
        mix = Mix(calls=calls_in(size), rate=RATE, noise=noise)
        parts |= seeded(name, size, 8, partial(mix_run, under, mix, Pair(prefills_by=prefills)))
    return parts


def _signals(results: Results) -> Findings:
    names = [name for name in _SIGNALS if present(results, name)]
    goodput = {name: mean(results, name, "goodput") for name in names}
    rows = [
        *(Row(f"{name}, goodput", each) for name, each in goodput.items()),
        *(Row(f"{name}, P99 of TTFT (s)", mean(results, name, "ttft_p99_s")) for name in names),
        *(
            Row(f"{name}: lost, points", 100 * (goodput[_ALL] - each))
            for name, each in goodput.items()
            if name != _ALL
        ),
    ]
    claims = [
        Claim("all signals are worth no less than counts", goodput[_ALL] - goodput["counts alone"], -0.02),
    ]
    return Findings(rows, claims)


SIGNALS = Study(
    name="calibrated_signals",
    title="Which signal matters most",
    source=SOURCE,
    setting=f"2 prefill and 4 decode workers, {FLEET}; the bursty mix at {RATE:g} calls/s; the paper's sum, "
    "told outputs as they will be, less one signal at a time.",
    parts=_signal_parts,
    find=_signals,
    word="The paper names the predicted length of the output as the signal that matters most; its figures "
    "are not to be had. That is not so here: to be told the mean of all outputs in place of each costs "
    "nothing, and no other signal costs as much as a point, which is what traces differ by. The reason "
    "is the one of the main table: in our fleet targets are missed before the first token, not after "
    "it.",
)


# --- loads ------------------------------------------------------------------------------------------------

_LOADS = ("chat_short", "long_prefill", "long_decode", "mixed_bursty")


def _load_parts(size: Size) -> dict[str, Part]:
    parts: dict[str, Part] = {}
    for load in _LOADS:
        mix = Mix(calls=size.pick(400, 1_500), rate=CALIBRATED_A40.rates[load], workload=load)
        for name, under in RIVALS.items():
            parts |= seeded(f"{load}, {name}", size, 3, partial(mix_run, under, mix))
    return parts


def _loads(results: Results) -> Findings:
    def goodput(load: str, name: str) -> float:
        return mean(results, f"{load}, {name}", "goodput")

    gains = {load: goodput(load, "calibrated") - goodput(load, "round robin") for load in _LOADS}
    rows = [
        *(Row(f"{load}, {name}, goodput", goodput(load, name)) for load in _LOADS for name in RIVALS),
        *(Row(f"{load}, calibrated less round robin, points", 100 * gain) for load, gain in gains.items()),
        *(
            Row(
                f"{load}, calibrated less least loaded, points",
                100 * (goodput(load, "calibrated") - goodput(load, "least loaded")),
            )
            for load in _LOADS
        ),
    ]
    claims = [Claim("prices are nowhere far behind round robin, goodput", min(gains.values()), -0.03)]
    return Findings(rows, claims)


LOADS = Study(
    name="calibrated_loads",
    title="Which policy suits which load",
    source=SOURCE,
    setting=f"2 prefill and 4 decode workers, {FLEET}; each family and the mix at the rate at which round "
    "robin is about to collapse.",
    parts=_load_parts,
    find=_loads,
    word="The paper sums this up in a figure that is not to be had, and says that the gain grows with how "
    "much calls differ. Here no policy leads everywhere: prices are the best or within noise of it on "
    "each load, the length heuristic loses much where prompts are all on one side of its threshold, "
    "and counting is nearly as good where calls are alike.",
)
