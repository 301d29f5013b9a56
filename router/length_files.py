"""What the pools have learned of output lengths, in files that outlive the process.

Separate from the predictors, which know neither files nor the time of day. A file that is damaged, or of
another version, costs what was learned and nothing else: it is warned of, and replaced at the next save.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from router.core.forecasts import Forecasts
from router.core.predict import LengthPredictor
from router.core.predict_state import export, restore
from router.telemetry.request_log import load_salt

log = logging.getLogger("pointsman.lengths")


class _File(msgspec.Struct):
    """What stands in one file.

    Attributes:
        saved_unix_s: when it was written; lengths have aged since.
    """

    saved_unix_s: float
    predictor: dict[str, Any]


_decode = msgspec.json.Decoder(_File).decode
_encode = msgspec.json.Encoder().encode


class LengthFiles:
    """One file for each pool.

    Args:
        directory: made when missing.
        pools: forecasts by the name of their pool.
        wall: Unix time (s).
    """

    def __init__(
        self,
        directory: Path,
        pools: Mapping[str, Forecasts],
        now: Callable[[], float],
        wall: Callable[[], float],
        *,
        interval_s: float,
    ) -> None:
        """Raises OSError, ValueError: the folder or the salt in it cannot be had."""
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        salt = load_salt(directory / "salt")
        for forecasts in pools.values():
            forecasts.predictor.salt = salt
        self._directory = directory
        self._pools = pools
        self._now = now
        self._wall = wall
        self._interval_s = interval_s

    def path(self, pool: str) -> Path:
        return self._directory / f"lengths-{pool}.json"

    def restore(self) -> None:
        """Gives every pool what was saved for it. Call it before anything is learned."""
        for name, forecasts in self._pools.items():
            path = self.path(name)
            try:
                file = _decode(path.read_bytes())
                away_s = max(self._wall() - file.saved_unix_s, 0.0)
                restore(forecasts.predictor, file.predictor, self._now(), away_s)
            except FileNotFoundError:
                continue
            except (OSError, ValueError, msgspec.MsgspecError) as error:
                log.warning("lengths of pool %s begin anew, since %s cannot be used: %s", name, path, error)
            else:
                log.info("lengths of pool %s go on from %s", name, path)

    async def run(self) -> None:
        """Saves again and again, for ever."""
        while True:
            await asyncio.sleep(self._interval_s)
            for name, forecasts in self._pools.items():
                # What goes to the thread is a copy: the predictor learns meanwhile.
                copy, now, wall = forecasts.predictor.copy(), self._now(), self._wall()
                await asyncio.to_thread(self._save, name, copy, now, wall)

    def save(self) -> None:
        """Saves all, at once."""
        for name, forecasts in self._pools.items():
            self._save(name, forecasts.predictor, self._now(), self._wall())

    def _save(self, name: str, predictor: LengthPredictor, now: float, wall: float) -> None:
        try:
            replace_file(self.path(name), _encode(_File(wall, export(predictor, now))))
        except OSError as error:
            log.warning("lengths of pool %s cannot be saved: %s", name, error)

    def __repr__(self) -> str:
        return f"<LengthFiles [{len(self._pools)} pools] in {self._directory}>"


def replace_file(path: Path, data: bytes) -> None:
    """Puts data into a file that its owner alone can read. Whoever reads it, or finds it after a crash, has
    all of the old data or all of the new.

    Raises:
        OSError: it cannot be written; the old file stays.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        beside.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise
