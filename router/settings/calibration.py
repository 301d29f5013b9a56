"""Which measurements of the fleet the router starts from.

Separate from the pools: one file speaks of the workers of all of them.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from router.settings.section import FilePath, Section


class CalibrationSettings(Section):
    """Step times and transfer times that were measured by `pointsman calibrate`."""

    file: FilePath | None = None
    """File with the measurements, read at the start. Workers are found in it by name, else by URL. null: what
    live traffic teaches is all there is."""
    max_age_days: Annotated[float, Field(gt=0, le=3650)] = 30.0
    """Older measurements are used all the same, with a warning."""
