"""`python -m benchmarks.peers`: Pointsman beside other routers, one run, one client, the same engines."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.peers.installation import versions
from benchmarks.peers.report import print_table, verdicts
from benchmarks.peers.rounds import Samples, run_rounds
from benchmarks.peers.targets import DIRECT, ROUTERS, Target, prepare, start
from benchmarks.processes import EngineProcess
from benchmarks.verdict import Verdict, print_verdicts, write_json

_ROUNDS = 3
_ENGINES = 2


def main() -> int:
    args = _arguments()
    prepare(args.routers)
    load_before = os.getloadavg()
    with ExitStack() as stack:
        engines = [stack.enter_context(EngineProcess(f"engine {number}")) for number in range(_ENGINES)]
        urls = [engine.url for engine in engines]
        targets = [Target(DIRECT, engines[0].port, None)]
        for name in args.routers:
            target = start(name, urls)
            if target.router is not None:
                stack.enter_context(target.router)
            targets.append(target)
        samples = run_rounds(targets, engines, 1 if args.quick else _ROUNDS, quick=args.quick)
        rss = {target.name: target.router.rss_bytes() for target in targets if target.router is not None}
    print_table(samples, args.routers, rss)
    found = verdicts(samples, rss)
    if found:
        print_verdicts(found)
    loads = (load_before, os.getloadavg())
    print(f"\nload average {loads[0][0]:.1f} before, {loads[1][0]:.1f} after, on {os.cpu_count()} cores")
    write_json(args.json, _content(samples, rss, found, loads))
    return 0 if all(verdict.holds for verdict in found) else 1


def _arguments() -> argparse.Namespace:
    command = argparse.ArgumentParser(description=__doc__)
    command.add_argument(
        "--quick", action="store_true", help="one short round: shows that all works, no figures"
    )
    command.add_argument("--routers", nargs="+", choices=ROUTERS, default=list(ROUTERS))
    command.add_argument("--json", type=Path, default=Path("build/benchmarks/peers.json"))
    return command.parse_args()


def _content(
    samples: Samples,
    rss: dict[str, int],
    found: Sequence[Verdict],
    loads: Sequence[tuple[float, float, float]],
) -> dict[str, object]:
    return {
        "versions": versions(),
        "python": sys.version,
        "cores": os.cpu_count(),
        "load_average": loads,
        "rss_bytes": rss,
        "verdicts": found,
        "samples": samples,
    }


if __name__ == "__main__":
    sys.exit(main())
