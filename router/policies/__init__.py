"""The policies by name: the one place that knows them all.

A policy is one file whose docstring is its documentation; `docs/policies.md` is made from them.
"""

from __future__ import annotations

from collections.abc import Mapping

from router.core.policy import AnyPolicy
from router.policies import (
    balance_route_0,
    balance_route_h,
    cache_aware,
    calibrated,
    joint,
    least_requests,
    least_tokens,
    least_work,
    length_threshold,
    power_of_two,
    preble,
    random,
    round_robin,
    session_affinity,
)
from router.policies.spec import PolicyError, PolicySpec, Shape

__all__ = ["POLICIES", "PolicyError", "PolicySpec", "Shape", "build"]

_FILES = (
    balance_route_0,
    balance_route_h,
    cache_aware,
    calibrated,
    joint,
    least_requests,
    least_tokens,
    least_work,
    length_threshold,
    power_of_two,
    preble,
    random,
    round_robin,
    session_affinity,
)

POLICIES: dict[str, PolicySpec] = {file.SPEC.name: file.SPEC for file in _FILES}


def build(name: str, params: Mapping[str, object], seed: int) -> AnyPolicy:
    """A new policy, with state of its own.

    Give each pool its own seed: two pools that share one draw the same numbers for the same request.

    Raises:
        PolicyError: the name, a parameter or a value is not known; the sentence says what is allowed.
    """
    if name not in POLICIES:
        raise PolicyError(f"policy {name!r} is unknown; allowed: {', '.join(POLICIES)}")
    spec = POLICIES[name]
    return spec.factory(spec.check(params), seed)
