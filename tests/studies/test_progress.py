"""A command that takes long says how far it is, where somebody looks and where a file is written."""

from __future__ import annotations

import asyncio
import io

import pytest
from rich.console import Console

from router.studies.calibrate.tally import Tally as Measured
from router.studies.progress import Counted, watch
from router.studies.replay.run import Tally as Replayed
from router.virtual.clock import run

REPLAYED = Replayed(planned=4, sent=3, in_flight=1, ok=1, failed=1, output_tokens=7)
MEASURED = Measured(planned=9, done=2, doing={"b": "steps", "a": "prefill"})


@pytest.mark.parametrize(
    ("counted", "line"),
    [
        (REPLAYED, "2/4 done: 1 ok, 1 failed, 0 skipped, 1 in flight, 7 output tokens"),
        (MEASURED, "2/9 measured; a: prefill, b: steps"),
    ],
)
def test_it_is_a_plain_line_now_and_then_where_there_is_no_terminal(counted: Counted, line: str) -> None:
    file = io.StringIO()

    async def main() -> None:
        task = asyncio.create_task(watch(counted, Console(file=file, width=40)))
        await asyncio.sleep(21.0)
        task.cancel()
        await asyncio.wait([task])

    run(main())
    assert file.getvalue().splitlines() == [line] * 2


def test_it_is_a_bar_on_a_terminal() -> None:
    tally, file = Replayed(planned=4, ok=2, in_flight=1), io.StringIO()
    console = Console(file=file, width=100, force_terminal=True, color_system=None)

    async def main() -> None:
        task = asyncio.create_task(watch(tally, console))
        await asyncio.sleep(1.0)
        tally.ok = 4
        task.cancel()
        await asyncio.wait([task])

    run(main())
    assert "2/4" in file.getvalue()
    assert "1 in flight, 0 failed" in file.getvalue()
    assert "4/4" in file.getvalue()  # the last state is drawn when the command ends


def test_a_bar_without_an_end_is_one_too() -> None:
    tally, file = Measured(), io.StringIO()
    console = Console(file=file, width=100, force_terminal=True, color_system=None)

    async def main() -> None:
        task = asyncio.create_task(watch(tally, console))
        await asyncio.sleep(1.0)
        tally.plan(3)
        tally.step()
        task.cancel()
        await asyncio.wait([task])

    run(main())
    assert "0/?" in file.getvalue()
    assert "1/3" in file.getvalue()
