"""A fleet of mock engines on a virtual network, and a calibration of it in virtual time."""

from __future__ import annotations

import asyncio
import io
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from rich.console import Console

from engines.mock.settings import MockSettings
from router.settings import Settings
from router.settings.calibration_file import CalibrationFile
from router.studies.calibrate.fleet import fleet_of
from router.studies.calibrate.session import Options, World, calibrate
from router.upstream.client import Upstream
from router.virtual.clock import run
from router.virtual.network import Network
from tests.shell.live import MockEngine

START = datetime(2026, 11, 30, 2, 0, tzinfo=UTC)
MODEL = "qwen2.5-3b"


@asynccontextmanager
async def engines(
    network: Network, mocks: Mapping[str, MockSettings]
) -> AsyncIterator[dict[str, MockEngine]]:
    """Engines that are up, each on a host of its name."""
    made = {name: MockEngine(network, name, settings) for name, settings in mocks.items()}
    try:
        yield made
    finally:
        for engine in made.values():
            engine.process.close()
            engine.reset_connections()


def world(network: Network, console: Console | None = None) -> World:
    """What a calibration needs, on the running virtual loop."""
    loop = asyncio.get_running_loop()
    return World(
        upstream=Upstream(network.connect, loop.time),
        now=loop.time,
        wall=lambda: START + timedelta(seconds=loop.time()),
        console=console or Console(file=io.StringIO()),
        chance=random.Random(0),
    )


def workers(names: Sequence[str], **each: Any) -> list[dict[str, Any]]:
    """Settings of workers that are named after their hosts."""
    return [{"url": f"http://{name}:8000", "name": name, **each} for name in names]


def colocated(*names: str, **pool: Any) -> Settings:
    return Settings(pools={"default": {"workers": workers(names), **pool}})  # type: ignore[arg-type]  # as in YAML


def pair(prefills: Sequence[str], decodes: Sequence[str], connector: str) -> Settings:
    pools = {
        "prefill": {"role": "prefill", "workers": workers(prefills)},
        "decode": {"role": "decode", "connector": connector, "workers": workers(decodes)},
    }
    return Settings(pools=pools)  # type: ignore[arg-type]  # as in YAML


def calibrated(settings: Settings, mocks: Mapping[str, MockSettings], **options: Any) -> CalibrationFile:
    """The file of one calibration; no request is left at any engine."""

    async def main() -> CalibrationFile:
        network = Network()
        async with engines(network, mocks) as made:
            here = world(network)
            try:
                found = await calibrate(Options(fleet=fleet_of(settings), run="r", **options), here)
            finally:
                await here.upstream.aclose()
            await asyncio.sleep(0.1)
            for engine in made.values():
                assert engine.process.in_progress == 0
            return found

    return run(main())
