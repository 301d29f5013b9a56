"""`/policies`: which policy each pool runs, and another one from now on.

Separate from the administration of workers, which knows nothing of how they are chosen.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from router.choosing import Choosing
from router.core.errors import BadRequest


class NewPolicy(BaseModel):
    """Body of PUT /policies: what a pool chooses by from now on, or what decides in its shadow, or both."""

    model_config = ConfigDict(extra="forbid")

    pool: str | None = None
    policy: str | None = None
    params: dict[str, Any] = Field(default_factory=dict)
    shadow_policies: list[str] | None = None
    shadow_sample: float | None = None


def add_policies(routes: APIRouter, choosing: Choosing) -> None:
    """Adds the routes; whoever owns `routes` guards them."""

    @routes.get("/policies")
    async def policies() -> dict[str, Any]:
        return choosing.state()

    @routes.put("/policies")
    @routes.post("/policies")
    async def switch(new: NewPolicy) -> dict[str, Any]:
        return _change(choosing, new)


def _change(choosing: Choosing, new: NewPolicy) -> dict[str, Any]:
    """Raises BadRequest when nothing is asked for, when something would have no effect, or when any of it is
    refused; then nothing is changed."""
    pool = _only_pool(choosing) if new.pool is None else new.pool
    if new.policy is None and new.shadow_policies is None:
        raise BadRequest("Say policy, or shadow_policies, or both.")
    if new.params and new.policy is None:
        raise BadRequest("Say the policy that params are of; shadows have their defaults.", param="params")
    if new.shadow_sample is not None and new.shadow_policies is None:
        raise BadRequest("Say the shadow_policies that shadow_sample is for.", param="shadow_sample")
    if new.policy is not None:
        choosing.check(pool, new.policy, new.params)
    if new.shadow_policies is not None:
        state = choosing.shadow(pool, new.shadow_policies, new.shadow_sample)
    if new.policy is not None:
        state = choosing.switch(pool, new.policy, new.params)
    return state


def _only_pool(choosing: Choosing) -> str:
    """The pool of a request that names none. Raises BadRequest when there are several."""
    pools = list(choosing.settings.pools)
    if len(pools) > 1:
        raise BadRequest(f"Say which pool: {', '.join(pools)}.")
    return pools[0]
