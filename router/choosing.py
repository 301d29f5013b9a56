"""Which policy each pool runs, and how that is changed while requests run.

Separate from the composition root, which builds it once, and from the admin routes, which only ask: this is
the one place that turns the name of a policy into one that a pool decides by.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from router.core.binding import Mode
from router.core.errors import BadRequest
from router.core.policy import AnyPolicy
from router.core.pool import Pool
from router.core.recording import Recording, Records
from router.core.seat import Seat
from router.core.shadows import Shadow, Verdict
from router.core.worker import Role
from router.dispatch import Dispatcher
from router.fleet import Fleet
from router.policies import POLICIES, Shape, build
from router.policies.round_watch import RoundWatch, Unwatched, Watched
from router.settings.changes import with_policy, with_shadows
from router.settings.configuration import Settings
from router.settings.refusals import SettingsError

log = logging.getLogger("pointsman")


class Choosing:
    """The policies of all pools.

    State: `settings`, with the policies that are in force now.
    """

    def __init__(
        self,
        fleet: Fleet,
        settings: Settings,
        clock: Callable[[], float],
        rounds: Callable[[str, Callable[[], float]], RoundWatch] = lambda pool, clock: Unwatched(),
    ) -> None:
        """
        Args:
            clock: what shadows and rounds are measured by (s).
            rounds: makes what measures the rounds of a pool by a clock.
        """
        self._fleet = fleet
        self._rounds = rounds
        self._clock = clock
        self._seeds = {name: settings.seed + index for index, name in enumerate(settings.pools)}
        self.settings = settings

    def adopt(self, recorder: Records | None = None) -> None:
        """Lets every pool of the fleet make policies by name, and gives it its shadows and who records what
        is decided."""
        for name, dispatcher in self._fleet.dispatchers.items():
            chooser = dispatcher.pool.chooser
            chooser.make = partial(self._beside, dispatcher.pool)
            chooser.on_dropped = partial(_dropped, name)
            chooser.shadows.clock = self._clock
            if recorder is not None:
                chooser.recorder = Recording(recorder, partial(_broken, name))
            self._shadow(name)

    def build(self, pool: str) -> AnyPolicy:
        """A new policy as the settings of a pool say."""
        settings = self.settings.pools[pool]
        policy = build(settings.policy, settings.policy_params, self._seeds[pool])
        if isinstance(policy, Watched):
            policy.watch = self._rounds(pool, self._clock)
        return policy

    def _shadow(self, pool: str) -> None:
        """Gives a pool the shadows of its settings. Those that it has already go on with what they know."""
        settings, chooser = self.settings.pools[pool], self._fleet.dispatchers[pool].pool.chooser
        known = {shadow.seat.name: shadow for shadow in chooser.shadows}
        shadows = [known.get(name) or self._new_shadow(pool, name) for name in settings.shadow_policies]
        chooser.shadow(shadows, settings.shadow_sample)

    def _new_shadow(self, pool: str, name: str) -> Shadow:
        return Shadow(Seat(name, build(name, {}, self._seeds[pool])), POLICIES[name].cost_unit)

    def _beside(self, pool: Pool, name: str) -> AnyPolicy | None:
        """A policy with its defaults, for requests that ask for it; None when it is not for such a pool."""
        if not self.fits(pool, name):
            return None
        return build(name, {}, self._seeds[pool.rules.name])

    def allowed(self, pools: Sequence[Pool]) -> list[str]:
        """Names of the policies that a request may ask for, which one of these pools at least can use."""
        return [name for name in POLICIES if any(self.fits(pool, name) for pool in pools)]

    @staticmethod
    def fits(pool: Pool, name: str) -> bool:
        """Whether a policy can choose the workers of a pool for a single request.

        One that chooses pairs needs the other side of the pair; one for batches must be able to choose for
        one request, which none does for a prompt alone.
        """
        spec = POLICIES.get(name)
        if spec is None or pool.rules.role not in spec.roles:
            return False
        if spec.shape is Shape.PAIR:
            return pool.partner is not None
        return spec.shape is Shape.ONE or pool.rules.role is not Role.PREFILL

    # --- changes ---------------------------------------------------------------------------------------

    def check(self, pool: str, policy: str, params: Mapping[str, object]) -> None:
        """Raises as `switch` does, and changes nothing."""
        self._with_policy(self._dispatcher(pool), policy, params)

    def _with_policy(self, dispatcher: Dispatcher, policy: str, params: Mapping[str, object]) -> Settings:
        """The settings with another policy of a pool. Raises as `switch` does."""
        pool = dispatcher.pool
        try:
            changed = with_policy(self.settings, pool.rules.name, policy, params)
            early = changed.pools[pool.rules.name].mode is Mode.EARLY
            if not early or POLICIES[policy].shape is Shape.BATCH:
                _require_slots(pool, policy)
        except SettingsError as error:
            raise BadRequest("; ".join(error.problems)) from None
        return changed

    def switch(self, pool: str, policy: str, params: Mapping[str, object]) -> dict[str, Any]:
        """Decides by another policy from now on, and returns the state of the pool. No request is lost: what
        waits goes on waiting, and leases are settled as ever.

        Raises:
            BadRequest: the sentences that a configuration with this policy would be refused with, or no pool
                of that name.
        """
        dispatcher = self._dispatcher(pool)
        before, self.settings = self.settings, self._with_policy(dispatcher, policy, params)
        dispatcher.pool.use(self.build(pool), policy, self.settings.pools[pool].mode)
        dispatcher.wake()
        was = before.pools[pool]
        log.info("pool %s chooses by %s %s from now on, no more by %s %s", pool, policy, dict(params),
                 was.policy, was.policy_params)  # fmt: skip
        return self.state_of(pool)

    def shadow(self, pool: str, policies: Sequence[str], sample: float | None) -> dict[str, Any]:
        """Has these policies decide without effect from now on, and no others. Raises as `switch` does."""
        self._dispatcher(pool)
        try:
            self.settings = with_shadows(self.settings, pool, policies, sample)
        except SettingsError as error:
            raise BadRequest("; ".join(error.problems)) from None
        self._shadow(pool)
        log.info("pool %s is shadowed by %s", pool, ", ".join(policies) or "no policy")
        return self.state_of(pool)

    def _dispatcher(self, pool: str) -> Dispatcher:
        dispatcher = self._fleet.dispatchers.get(pool)
        if dispatcher is None:
            raise BadRequest(f"No pool is named {pool!r}; there are: {', '.join(self._fleet.dispatchers)}.")
        return dispatcher

    # --- what there is ---------------------------------------------------------------------------------

    def state_of(self, pool: str) -> dict[str, Any]:
        """What a pool chooses by, for operators."""
        dispatched = self._fleet.dispatchers[pool].pool
        settings, chooser = self.settings.pools[pool], dispatched.chooser
        spec = POLICIES[settings.policy]
        return {
            "pool": pool,
            "role": dispatched.rules.role.value,
            "policy": chooser.name,
            "params": asdict(spec.check(settings.policy_params)),
            "shape": spec.shape.value,
            "cost_unit": spec.cost_unit,
            "binding": dispatched.binding.mode.value,
            "asked_for": chooser.others,
            "shadow_sample": settings.shadow_sample,
            "shadows": [_shadow_state(shadow) for shadow in chooser.shadows],
            "decisions": [
                {"policy": policy, "reason": reason, "count": count}
                for (policy, reason), count in sorted(chooser.counts.items())
            ],
        }

    def state(self) -> dict[str, Any]:
        """All pools, and all policies that there are."""
        policies = [
            {
                "policy": name,
                "shape": spec.shape.value,
                "roles": sorted(role.value for role in spec.roles),
                "cost_unit": spec.cost_unit,
                "params": asdict(spec.check({})),
            }
            for name, spec in POLICIES.items()
        ]
        return {"pools": [self.state_of(pool) for pool in self._fleet.dispatchers], "policies": policies}

    def __repr__(self) -> str:
        pools = ", ".join(f"{name} {d.pool.policy_name}" for name, d in self._fleet.dispatchers.items())
        return f"<Choosing [{pools}]>"


def _shadow_state(shadow: Shadow) -> dict[str, Any]:
    judged = shadow.verdicts.total()
    return {
        "policy": shadow.seat.name,
        "judged": judged,
        "verdicts": {verdict.value: shadow.verdicts[verdict] for verdict in Verdict},
        "agreement": shadow.verdicts[Verdict.AGREED] / judged if judged else None,
        "regret": shadow.regret,
        "cost_unit": shadow.unit,
        "busy_s": shadow.busy_s,
    }


def _require_slots(pool: Pool, policy: str) -> None:
    """Raises SettingsError for workers that came while the router ran, and said no slots."""
    unknown = [worker.name for worker in pool.roster if worker.slots is None]
    if unknown:
        name = pool.rules.name
        problem = (
            f"{', '.join(unknown)} of pool {name} has no slots, but its policy {policy}, which fills slots, "
            f"needs them; set pools.{name}.slots to its max_num_seqs"
        )
        raise SettingsError([problem])


def _broken(pool: str, error: Exception) -> None:
    log.error("what is decided in pool %s is recorded no more", pool, exc_info=error)


def _dropped(pool: str, policy: str, error: Exception) -> None:
    log.error("policy %s beside that of pool %s failed and is dropped", policy, pool, exc_info=error)
