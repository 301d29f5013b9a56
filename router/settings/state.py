"""What outlives the process, and where.

Separate from the request log, which others read: this is the router's own memory.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from router.settings.section import FilePath, Section


class StateSettings(Section):
    """What was learned of output lengths, kept over restarts."""

    dir: FilePath | None = None
    """Folder for it, made when missing. Of prompts it holds salted hashes, and of their answers the lengths.
    null: a router that starts has learned nothing. Routers that run at the same time need one each."""
    save_interval_s: Annotated[float, Field(ge=1, le=86_400)] = 300.0
    """Time between two saves; there is one at the end, too."""
