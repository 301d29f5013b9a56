"""What requests are promised, by class of service.

Separate from the keys, which only name a class, and from the policies, which decide by it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from router.core.slo import LOOSE, TIGHT, Targets
from router.settings.section import Seconds, Section


class ClassTargets(Section):
    """Targets of one class of service."""

    ttft_s: Seconds | None = None
    """First byte of the request to the first data event of the answer."""
    tpot_s: Seconds | None = None
    """Per output token after the first."""

    @property
    def core(self) -> Targets:
        return Targets(self.ttft_s, self.tpot_s)


class SloSettings(Section):
    """Targets by class; a client's key names its class. What is null comes from the file of
    `calibration.file`, and without one nothing is promised and nothing counted. Policies weigh the class, not
    its targets."""

    default_class: Literal["loose", "tight"] = "loose"
    """Class of requests whose key names neither."""
    tight: ClassTargets = ClassTargets()
    loose: ClassTargets = ClassTargets()

    @property
    def configured(self) -> dict[str, Targets]:
        """Of each class that has any."""
        classes = {TIGHT: self.tight.core, LOOSE: self.loose.core}
        return {name: targets for name, targets in classes.items() if targets}

    def problems(self) -> Iterator[str]:
        """What cannot hold together, one sentence each."""
        for name in ("ttft_s", "tpot_s"):
            tight, loose = getattr(self.tight, name), getattr(self.loose, name)
            if tight is not None and loose is not None and tight > loose:
                yield f"slo.tight.{name} is {tight:g}, which is looser than slo.loose.{name}, {loose:g}"
