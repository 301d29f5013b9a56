"""`python -m benchmarks`: speed and memory of our own parts, in one table.

The comparison with other routers is `python -m benchmarks.peers`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import (
    decode_round,
    joint,
    micro,
    mock_lag,
    parity,
    policies,
    prefix_index,
    prefix_memory,
    prefix_policies,
    rounds,
    simulation,
    streams_memory,
)
from benchmarks.verdict import Verdict, print_verdicts, write_json


def decisions(*, quick: bool) -> list[Verdict]:
    """pick() and commit of every policy that follows no prefixes, on a busy pool of each size."""
    return [
        Verdict(f"{name}, {size} workers", policies.median_us(name, policies.busy(size)), "µs", bound)
        for name in policies.ONE_AT_A_TIME
        if name not in prefix_policies.POLICIES
        for size, bound in policies.bounds_of(name).items()
        if size == 8 or not quick
    ]


def prefixes(*, quick: bool) -> list[Verdict]:
    """One decision of every policy that follows prefixes, and of both ends of a request."""
    return [*prefix_policies.measure(quick=quick), *joint.measure(quick=quick)]


def index(*, quick: bool) -> list[Verdict]:
    """One prompt in the prefix index, and the memory that it takes."""
    return [*prefix_index.measure(quick=quick), *prefix_memory.measure(quick=quick)]


def batches(*, quick: bool) -> list[Verdict]:
    """One round of every policy that sees all waiting requests."""
    return rounds.measure(quick=quick)


def decode(*, quick: bool) -> list[Verdict]:
    """One round of a pool that decodes what others prefilled."""
    return decode_round.measure(quick=quick)


def memory(*, quick: bool) -> list[Verdict]:
    return [streams_memory.measure(quick=quick)]


def parts(*, quick: bool) -> list[Verdict]:
    return micro.measure(quick=quick)


def mock(*, quick: bool) -> list[Verdict]:
    return mock_lag.measure(quick=quick)


def speed(*, quick: bool) -> list[Verdict]:
    """What simulated tokens and requests cost."""
    return simulation.measure(quick=quick)


def sockets(*, quick: bool) -> list[Verdict]:
    """How far the simulation is from real sockets."""
    return parity.measure(quick=quick)


BENCHMARKS: dict[str, Callable[..., Sequence[Verdict]]] = {
    "parts": parts,
    "policies": decisions,
    "prefixes": prefixes,
    "index": index,
    "rounds": batches,
    "decode": decode,
    "mock": mock,
    "simulation": speed,
    "parity": sockets,
    "memory": memory,
}


def main() -> int:
    command = argparse.ArgumentParser(description=__doc__)
    command.add_argument("--only", nargs="+", choices=BENCHMARKS, default=list(BENCHMARKS))
    command.add_argument("--quick", action="store_true", help="short runs: show that all works, no figures")
    command.add_argument("--json", type=Path, default=Path("build/benchmarks/own.json"))
    args = command.parse_args()
    load_before = os.getloadavg()
    verdicts: list[Verdict] = []
    for name in args.only:
        print(f"{name} …", flush=True)
        verdicts += BENCHMARKS[name](quick=args.quick)
    print_verdicts(verdicts)
    loads = (load_before, os.getloadavg())
    print(f"\nload average {loads[0][0]:.1f} before, {loads[1][0]:.1f} after, on {os.cpu_count()} cores")
    content = {"python": sys.version, "cores": os.cpu_count(), "load_average": loads, "verdicts": verdicts}
    write_json(args.json, content)
    return 0 if all(verdict.holds for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
