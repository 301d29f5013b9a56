"""What a configuration starts from, of what `pointsman calibrate` has measured: for `check` and `serve`.

Separate from `check`, which knows settings only: here a file is read and compared with the workers.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from router.settings import Settings, read_workers_file
from router.settings.calibration_file import WorkerMeasured, old_or_foreign, read_calibration


def report(settings: Settings) -> Iterator[str]:
    """One line for the file, and one for each worker of the configuration that is in it."""
    path = settings.calibration.file
    if path is None:
        return
    file = read_calibration(path)
    yield f"{'calibration':<14}{path}, measured {file.measured:%Y-%m-%d %H:%M} UTC"
    for name, url in _workers(settings).items():
        found = file.worker(name, url)
        if found is not None:
            yield f"    {name}  {_laws(found[1])}"
    for one in file.transfers:
        per_1k_s = one.per_token_s * 1000
        yield (
            f"    {one.prefill}, {one.decode}  hand-over {one.base_s * 1e3:.3g} ms + {per_1k_s * 1e3:.3g} ms "
            "per 1,000 tokens"
        )


def doubts(settings: Settings) -> Iterator[str]:
    """What is probably not meant, one sentence each."""
    path = settings.calibration.file
    if path is not None:
        file = read_calibration(path)
        age = settings.calibration.max_age_days
        yield from old_or_foreign(file, age, datetime.now(UTC), _workers(settings))


def _workers(settings: Settings) -> dict[str, str]:
    """URLs by name; names that are looked up while the router runs are not among them."""
    found: dict[str, str] = {}
    for pool in settings.pools.values():
        more = read_workers_file(pool.workers_file) if pool.workers_file is not None else ()
        for entry in (*pool.workers, *more):
            if not entry.resolves:
                found |= {worker.name: worker.url for worker in pool.ranks_of(entry)}
    return found


def _laws(measured: WorkerMeasured) -> str:
    parts = []
    if measured.prefill is not None:
        parts.append(f"prefill of 1,000 tokens {measured.prefill.seconds(1000) * 1e3:.3g} ms")
    step = measured.step
    if step is not None:
        parts.append(
            f"step {step.base_s * 1e3:.3g} ms + {step.per_sequence_s * 1e6:.3g} µs per sequence + "
            f"{step.per_kv_token_s * 1e9:.3g} µs per 1,000 tokens of KV"
        )
    return ", ".join(parts) or "nothing was measured"
