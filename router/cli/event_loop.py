"""The event loop of commands that send requests.

Separate from the commands because several want the same one, and from the server's, which knows no commands.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed, for less processor time per event; None for asyncio's own."""
    with contextlib.suppress(ImportError):
        import uvloop  # noqa: PLC0415 - optional

        return uvloop.new_event_loop
    return None
