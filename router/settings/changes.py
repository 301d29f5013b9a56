"""Changes of a configuration that is in force: another policy for a pool, other shadows.

Separate from the configuration because what is asked for here comes from an operator while requests run, and
is refused in the same words as a file would be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import ValidationError

from router.settings.configuration import Settings
from router.settings.pools import PoolSettings
from router.settings.refusals import Loc, SettingsError, sentences


def with_policy(settings: Settings, pool: str, policy: str, params: Mapping[str, object]) -> Settings:
    """The same settings with another policy in a pool that there is.

    Raises:
        SettingsError: no such policy or parameter, a value out of bounds, or a policy that is not for this
            pool; one sentence each.
    """
    return _changed(settings, pool, {"policy": policy, "policy_params": dict(params)})


def with_shadows(settings: Settings, pool: str, shadows: Sequence[str], sample: float | None) -> Settings:
    """The same settings with other policies in the shadow of a pool that there is; raises as above.

    Args:
        sample: share of the decisions that they are asked about; None: as before.
    """
    asked: dict[str, object] = {"shadow_policies": tuple(shadows)}
    if sample is not None:
        asked["shadow_sample"] = sample
    return _changed(settings, pool, asked)


def _changed(settings: Settings, pool: str, asked: Mapping[str, object]) -> Settings:
    before = settings.pools[pool]
    try:
        checked = PoolSettings.model_validate({"role": before.role, **asked})
    except ValidationError as error:
        raise SettingsError(sentences(error, PoolSettings, _no_file)) from None
    after = before.model_copy(update={key: getattr(checked, key) for key in asked})
    changed = settings.model_copy(update={"pools": {**settings.pools, pool: after}})
    problems = list(changed.problems())
    if problems:
        raise SettingsError(problems)
    return changed


def _no_file(_: Loc) -> str:
    """Where a value was given: in the request itself."""
    return ""
