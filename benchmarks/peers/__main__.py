"""`python -m benchmarks.peers`: Pointsman beside other routers, one run, one client, the same engines."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

from benchmarks.peers import split
from benchmarks.peers.installation import versions
from benchmarks.peers.report import (
    print_prompt_table,
    print_split_table,
    print_table,
    prompt_verdicts,
    split_verdicts,
    verdicts,
)
from benchmarks.peers.rounds import COURSES, PROMPTS, Samples, measure, run_rounds
from benchmarks.peers.targets import (
    CACHE_AWARE,
    DIRECT,
    PLAIN,
    ROUTERS,
    SPLIT_ROUTERS,
    Target,
    prepare,
    start,
    start_split,
)
from benchmarks.processes import EngineProcess
from benchmarks.verdict import Verdict, print_verdicts, write_json

_ROUNDS = 3
_ENGINES = 2


class Result(NamedTuple):
    """What one kind of request came to.

    Attributes:
        rss: resident memory by router, after all loads.
    """

    samples: Samples
    rss: dict[str, int]
    found: list[Verdict]


def whole(names: Sequence[str], *, quick: bool) -> Result:
    """Requests that one engine serves."""
    with ExitStack() as stack:
        engines = [stack.enter_context(EngineProcess(f"engine {number}")) for number in range(_ENGINES)]
        urls = [engine.url for engine in engines]
        targets = [Target(DIRECT, engines[0].port, None)]
        targets += [_entered(stack, start(name, urls)) for name in names]
        measured = partial(measure, quick=quick)
        samples = run_rounds(COURSES, targets, engines, _rounds(quick=quick), measured)
        rss = _rss(targets)
    print_table(samples, names, rss)
    return Result(samples, rss, verdicts(samples, rss))


def splits(names: Sequence[str], *, quick: bool) -> Result:
    """Requests that a prefill and a decode engine serve between them."""
    with split.split_engines() as engines, ExitStack() as stack:
        prefill, decode = ([engine.url for engine in side] for side in (engines.prefill, engines.decode))
        targets = engines.alone()
        for name in names:
            if name in SPLIT_ROUTERS:
                targets.append(_entered(stack, start_split(name, prefill, decode)))
        measured = partial(engines.measure, quick=quick)
        samples = run_rounds(split.COURSES, targets, engines.all, _rounds(quick=quick), measured)
        rss = _rss(targets)
    print_split_table(samples, rss)
    return Result(samples, rss, split_verdicts(samples, rss))


def prompts(names: Sequence[str], *, quick: bool) -> Result:
    """Requests whose prompts are looked at: every router follows prefixes."""
    with ExitStack() as stack:
        engines = [stack.enter_context(EngineProcess(f"engine {number}")) for number in range(_ENGINES)]
        urls = [engine.url for engine in engines]
        looking = [name for name in names if name != PLAIN]
        targets = [_entered(stack, start(name, urls, CACHE_AWARE)) for name in looking]
        measured = partial(measure, quick=quick)
        samples = run_rounds((PROMPTS,), targets, engines, _rounds(quick=quick), measured)
        rss = _rss(targets)
    print_prompt_table(samples, rss)
    return Result(samples, rss, prompt_verdicts(samples, rss))


KINDS: dict[str, Callable[..., Result]] = {"whole": whole, "split": splits, "prompts": prompts}


def main() -> int:
    args = _arguments()
    prepare(args.routers)
    load_before = os.getloadavg()
    results = {kind: KINDS[kind](args.routers, quick=args.quick) for kind in args.courses}
    found = [verdict for result in results.values() for verdict in result.found]
    if found:
        print_verdicts(found)
    loads = (load_before, os.getloadavg())
    print(f"\nload average {loads[0][0]:.1f} before, {loads[1][0]:.1f} after, on {os.cpu_count()} cores")
    write_json(args.json, _content(results, found, loads))
    return 0 if all(verdict.holds for verdict in found) else 1


def _arguments() -> argparse.Namespace:
    command = argparse.ArgumentParser(description=__doc__)
    command.add_argument(
        "--quick", action="store_true", help="one short round: shows that all works, no figures"
    )
    command.add_argument("--routers", nargs="+", choices=ROUTERS, default=list(ROUTERS))
    command.add_argument(
        "--courses",
        nargs="+",
        choices=KINDS,
        default=list(KINDS),
        help="requests for one engine, for two, or with prompts that are looked at",
    )
    command.add_argument("--json", type=Path, default=Path("build/benchmarks/peers.json"))
    return command.parse_args()


def _entered(stack: ExitStack, target: Target) -> Target:
    """The target, to be stopped with the stack."""
    if target.router is not None:
        stack.enter_context(target.router)
    return target


def _rounds(*, quick: bool) -> int:
    return 1 if quick else _ROUNDS


def _rss(targets: Sequence[Target]) -> dict[str, int]:
    return {target.name: target.router.rss_bytes() for target in targets if target.router is not None}


def _content(
    results: dict[str, Result], found: Sequence[Verdict], loads: Sequence[tuple[float, float, float]]
) -> dict[str, object]:
    return {
        "versions": versions(),
        "python": sys.version,
        "cores": os.cpu_count(),
        "load_average": loads,
        "rss_bytes": {kind: result.rss for kind, result in results.items()},
        "verdicts": found,
        "samples": {name: by for result in results.values() for name, by in result.samples.items()},
    }


if __name__ == "__main__":
    sys.exit(main())
