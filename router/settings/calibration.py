"""Which measurements of the fleet the router starts from, and what it learns of them by itself.

Separate from the pools: one file speaks of the workers of all of them.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from router.core.calibration_fit import OnlineSettings
from router.settings.section import FilePath, Seconds, Section


class CalibrationSettings(Section):
    """Step times and transfer times: those that `pointsman calibrate` measured, and those that live traffic
    teaches."""

    file: FilePath | None = None
    """File with the measurements, read at the start. Workers are found in it by name, else by URL. null: what
    live traffic teaches is all there is."""
    max_age_days: Annotated[float, Field(gt=0, le=3650)] = 30.0
    """Older measurements are used all the same, with a warning."""
    online: bool = True
    """Fit the coefficients of every worker to live traffic. false: those of the file stay as they are, and
    without a file no worker is calibrated."""
    half_life_s: Seconds = 600.0
    """Time of traffic after which what was learned from it counts half."""
    min_samples: Annotated[int, Field(ge=10, le=100_000)] = 40
    """Samples of decode steps, of up to 4 a second, before learned coefficients are used; of prefills a
    quarter of that."""
    max_relative_error: Annotated[float, Field(ge=0.001, le=1)] = 0.1
    """Learned coefficients are used once the standard error of what each of them adds to a usual prediction
    is below this share of the prediction."""
    drift_ratio: Annotated[float, Field(ge=1.1, le=100)] = 2.0
    """Coefficients are given up when steps or prefills take this many times as long as they say, or one over
    it; until they are fitted anew, policies do without."""

    @property
    def fit(self) -> OnlineSettings:
        """What the fit of each pool needs of these."""
        return OnlineSettings(self.half_life_s, self.min_samples, self.max_relative_error, self.drift_ratio)
