"""The table of a comparison and the bounds that Pointsman is held to."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from benchmarks.peers.rounds import (
    ALONE,
    PACED,
    PROMPTS,
    SATURATED,
    SMALL,
    Course,
    Sample,
    Samples,
    added_s,
    median,
    ratio,
)
from benchmarks.peers.split import ALONE as SPLIT_ALONE
from benchmarks.peers.split import SMALL as SPLIT_SMALL
from benchmarks.peers.split import STREAMS as SPLIT_STREAMS
from benchmarks.peers.split import median_own_s
from benchmarks.peers.targets import DIRECT, POINTSMAN, SGLANG, SMG, VLLM
from benchmarks.verdict import Verdict

PACED_BOUND = 1.4
SATURATED_BOUND = 1.5
SMALL_BOUND = 2.0
ADDED_BOUND = 1.5
SPLIT_SMALL_BOUND = 1.6
SPLIT_OWN_BOUND_MS = 3.0
PROMPTS_BOUND = 1.0


def cpu_us(sample: Sample) -> float:
    return sample.cpu_us


def verdicts(samples: Samples, rss: Mapping[str, int]) -> list[Verdict]:
    """Pointsman's figures beside their bounds, as far as the peers that they refer to took part."""
    found = []
    if VLLM in rss:
        for course, bound in ((PACED, PACED_BOUND), (SATURATED, SATURATED_BOUND), (SMALL, SMALL_BOUND)):
            figure = ratio(samples, course, POINTSMAN, VLLM, cpu_us)
            found.append(Verdict(f"router CPU, {course.name}", figure, f"x {VLLM}", bound))
        found.append(Verdict("resident memory after all loads", rss[POINTSMAN] / rss[VLLM], f"x {VLLM}", 1.0))
    if SMG in rss:
        figure = added_ratio(samples, POINTSMAN, SMG)
        found.append(Verdict(f"added p50, {ALONE.name}", figure, f"x {SMG}", ADDED_BOUND))
    return found


def split_verdicts(samples: Samples, rss: Mapping[str, int]) -> list[Verdict]:
    """The same for split requests."""
    found = []
    if POINTSMAN in rss:
        own_ms = median_own_s(samples, POINTSMAN) * 1e3
        found.append(Verdict(f"own time p50, {SPLIT_ALONE.name}", own_ms, "ms", SPLIT_OWN_BOUND_MS))
    if POINTSMAN in rss and VLLM in rss:
        for course, bound in ((SPLIT_SMALL, SPLIT_SMALL_BOUND), (SPLIT_STREAMS, None)):
            figure = ratio(samples, course, POINTSMAN, VLLM, cpu_us)
            found.append(Verdict(f"router CPU, {course.name}", figure, f"x {VLLM}", bound))
    return found


def prompt_verdicts(samples: Samples, rss: Mapping[str, int]) -> list[Verdict]:
    """The same for requests whose prompts are looked at."""
    found = []
    for reference, bound in ((SMG, PROMPTS_BOUND), (VLLM, None), (SGLANG, None)):
        if POINTSMAN in rss and reference in rss:
            figure = ratio(samples, PROMPTS, POINTSMAN, reference, cpu_us)
            found.append(Verdict(f"router CPU, {PROMPTS.name}", figure, f"x {reference}", bound))
    return found


def added_ratio(samples: Samples, target: str, reference: str) -> float:
    """Added latency of `target` to that of `reference` in each round; the median of that."""
    pairs = zip(added_s(samples, target), added_s(samples, reference), strict=True)
    return statistics.median(one / other for one, other in pairs)


def print_table(samples: Samples, names: Sequence[str], rss: Mapping[str, int]) -> None:
    """Absolute figures of every target."""
    header = f"{'':<15}{'added p50':>11}{'CPU µs/req':>12}{'CPU µs/req':>12}{'req/s':>9}"
    header += f"{'CPU µs/event':>14}{'CPU µs/event':>14}{'events/s':>10}{'TTFT ms':>9}{'RSS MB':>8}"
    print(f"\n{'':<15}{'ms, c=1':>11}{'c=1':>12}{'c=32':>12}{'c=32':>9}", end="")
    print(f"{'paced':>14}{'saturated':>14}{'saturated':>10}{'paced':>9}")
    print(header)
    for name in (DIRECT, *names):
        print(f"{name:<15}" + _row(samples, name, rss.get(name)))


def _row(samples: Samples, name: str, rss: int | None) -> str:
    def middle(course: Course) -> str:
        return "" if rss is None else f"{median(samples, course, name, cpu_us):.1f}"

    rate = {course: median(samples, course, name, lambda one: one.rate) for course in (SMALL, SATURATED)}
    ttft = median(samples, PACED, name, lambda one: one.outcome.first_bytes.p50)
    cells = [
        (11, f"{statistics.median(added_s(samples, name)) * 1e3:.3f}"),
        (12, middle(ALONE)),
        (12, middle(SMALL)),
        (9, f"{rate[SMALL]:.0f}"),
        (14, middle(PACED)),
        (14, middle(SATURATED)),
        (10, f"{rate[SATURATED]:.0f}"),
        (9, f"{ttft * 1e3:.1f}"),
        (8, "" if rss is None else f"{rss / 1e6:.0f}"),
    ]
    return "".join(f"{text:>{width}}" for width, text in cells)


def print_split_table(samples: Samples, rss: Mapping[str, int]) -> None:
    """Absolute figures of the routers that split."""
    print(f"\n{'':<15}{'own p50':>11}{'CPU µs/req':>12}{'CPU µs/req':>12}{'req/s':>9}", end="")
    print(f"{'CPU µs/stream':>15}{'TTFT ms':>9}{'RSS MB':>8}")
    print(f"{'split':<15}{'ms, c=1':>11}{'c=1':>12}{'c=32':>12}{'c=32':>9}{'16 events':>15}{'c=32':>9}")
    for name, resident in rss.items():
        cells = [
            (11, f"{median_own_s(samples, name) * 1e3:.3f}"),
            *((12, f"{median(samples, course, name, cpu_us):.1f}") for course in (SPLIT_ALONE, SPLIT_SMALL)),
            (9, f"{median(samples, SPLIT_SMALL, name, lambda one: one.rate):.0f}"),
            (15, f"{median(samples, SPLIT_STREAMS, name, cpu_us):.1f}"),
            (9, f"{median(samples, SPLIT_STREAMS, name, lambda one: one.outcome.first_bytes.p50) * 1e3:.1f}"),
            (8, f"{resident / 1e6:.0f}"),
        ]
        print(f"{name:<15}" + "".join(f"{text:>{width}}" for width, text in cells))


def print_prompt_table(samples: Samples, rss: Mapping[str, int]) -> None:
    """Absolute figures of the routers that look at prompts."""
    print(f"\n{'cache_aware':<15}{'CPU µs/req':>12}{'req/s':>9}{'p50 ms':>9}{'RSS MB':>8}")
    for name, resident in rss.items():
        cells = [
            (12, f"{median(samples, PROMPTS, name, cpu_us):.1f}"),
            (9, f"{median(samples, PROMPTS, name, lambda one: one.rate):.0f}"),
            (9, f"{median(samples, PROMPTS, name, lambda one: one.p50_s) * 1e3:.1f}"),
            (8, f"{resident / 1e6:.0f}"),
        ]
        print(f"{name:<15}" + "".join(f"{text:>{width}}" for width, text in cells))
