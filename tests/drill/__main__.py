"""`python -m tests.drill --seeds 200`: many drills, a line for each that goes wrong, and a sum.

A seed that went wrong is run again, alone, with `--from SEED --seeds 1`.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

from tests.drill.stage import Result, drill


def main() -> int:
    command = argparse.ArgumentParser(prog="python -m tests.drill", description=__doc__)
    command.add_argument("--seeds", type=int, default=200)
    command.add_argument("--from", type=int, default=0, dest="first")
    command.add_argument("--jobs", type=int, default=2)
    args = command.parse_args()
    fates: Counter[str] = Counter()
    handed_over: Counter[str] = Counter()
    split = 0.0
    wrong = []
    with ProcessPoolExecutor(args.jobs) as processes:
        for seed, result in enumerate(processes.map(_attempt, _seeds(args)), args.first):
            if isinstance(result, str):
                wrong.append(seed)
                print(f"seed {seed} went wrong\n{result}", flush=True)
                continue
            fates += result.fates
            split += result.split
            handed_over += result.handed_over
    told = ", ".join(f"{count} {fate}" for fate, count in sorted(fates.items()))
    tokens = ", ".join(f"{count} by {name}" for name, count in sorted(handed_over.items()))
    print(
        f"{args.seeds} seeds: {told}; {split:.0f} requests split; KV tokens handed over: {tokens or 'none'}"
    )
    if wrong:
        print(f"{len(wrong)} seeds went wrong: {' '.join(map(str, wrong))}")
    if not handed_over:
        print("nothing was handed over, so nothing was drilled")
    return 1 if wrong or not handed_over else 0


def _seeds(args: argparse.Namespace) -> range:
    return range(args.first, args.first + args.seeds)


def _attempt(seed: int) -> Result | str:
    try:
        return drill(seed)
    except Exception:  # noqa: BLE001 - told in the parent, with its seed
        return traceback.format_exc()


if __name__ == "__main__":
    sys.exit(main())
