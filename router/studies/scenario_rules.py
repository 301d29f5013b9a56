"""The rules of a configuration, as a simulated router keeps them: who waits how long, what is split, what is
tried again.

Separate from the scenario, whose pools and engines they hold for. Every setting that changes where or when a
request is served is either here, or named by `ignored`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from engines.model.handover import TransferLink
from router.core.deadlines import SplitDeadlines
from router.core.health import HealthSettings
from router.core.split_rule import Fallback
from router.core.step_model import TransferModel
from router.settings import Pair, PoolSettings, Settings, WorkerSettings
from router.settings.calibration_file import CalibrationFile
from router.studies.scenario_engines import Machine, transfer_link
from router.studies.simulation.fleet import Delays, Patience, SplitPlan

_OF_A_FIT = ("half_life_s", "min_samples", "max_relative_error", "drift_ratio")


def delays(settings: Settings) -> Delays:
    """How often engines are asked how they are."""
    return Delays(
        scrape_s=settings.polling.interval_s,
        prefill_scrape_s=settings.polling.prefill_scrape_s,
        probe_s=settings.health.interval_s,
    )


def patience(settings: Settings) -> Patience:
    """With workers that fail, and with calls that take long."""
    health, retry, timeouts = settings.health, settings.retry, settings.timeouts
    return Patience(
        health=HealthSettings(health.timeouts_to_eject, health.failures_to_eject, health.warmup_s),
        min_share=health.min_in_rotation,
        stall_min_s=health.stall_min_s,
        stall_max_s=health.stall_max_s,
        first_event_s=timeouts.first_event_s,
        idle_s=timeouts.idle_s,
        tries=retry.allowed,
        budget_share=retry.budget_share,
        budget_min=retry.budget_min,
    )


def split_plan(
    settings: Settings,
    pair: Pair,
    calibration: CalibrationFile | None,
    producers: Iterable[str],
    machines: Mapping[str, tuple[WorkerSettings, Machine]],
) -> SplitPlan:
    """What is split between the pools of a pair, and how KV gets over.

    Args:
        producers: names of the workers that prefill.
        machines: that decode, by worker.

    Raises:
        ScenarioError: nothing says how long a transfer takes.
    """
    prefill, decode, connector = settings.pools[pair.prefill], settings.pools[pair.decode], pair.connector
    link = transfer_link(calibration, {name: made for name, (_, made) in machines.items()})
    block_tokens = next(iter(machines.values()))[1].engine.block_size
    learned = dict.fromkeys(producers, _model_of(link, block_tokens)) if settings.calibration.online else {}
    return SplitPlan(
        link=link,
        known={name: _known(name, calibration, learned) for name in machines},
        min_tokens=decode.pd_split_min_tokens,
        fallback=Fallback(decode.fallback),
        max_transfers=decode.max_transfers_per_worker,
        concurrent=connector.concurrent,
        sequences_on_handle=connector.sequences_on_handle,
        takes_whole=connector.decode_takes_whole,
        budget_high=prefill.prefill_budget_high,
        budget_low=prefill.prefill_budget_low,
        deadlines=_deadlines(settings, connector.lease_s),
    )


def _deadlines(settings: Settings, lease_s: float | None) -> SplitDeadlines:
    timeouts = settings.timeouts
    return SplitDeadlines(timeouts.prefill_s, timeouts.decode_first_event_s, lease_s, timeouts.lease_margin_s)


def _known(
    worker: str,
    calibration: CalibrationFile | None,
    learned: Mapping[str, TransferModel],
) -> Mapping[str, TransferModel]:
    """What is known from the start of the transfers to a worker: what was measured, else what live traffic
    teaches within its first minute."""
    measured = {} if calibration is None else calibration.transfers_to(worker)
    return measured or learned


def _model_of(link: TransferLink, block_tokens: int) -> TransferModel:
    per_block_s = link.seconds(2) - link.seconds(1)
    return TransferModel(link.latency_s, per_block_s / block_tokens)


def ignored(settings: Settings, pools: Mapping[str, PoolSettings]) -> Iterator[str]:
    """What is set and not simulated, one sentence each; of what nobody has set nothing is said."""
    for name, pool in pools.items():
        if any(worker.kv_events_endpoint for worker in pool.workers):
            yield (
                f"the KV events of pool {name} are not simulated: the router goes by what it infers from its "
                "own placements"
            )
    if settings.retry.poison_guard:
        yield "retry.poison_guard is not simulated: no body is refused for the workers that were lost to it"
    if settings.state.dir is not None:
        yield "state.dir is not read: length predictions begin without a history"
    fit = [key for key in _OF_A_FIT if key in settings.calibration.model_fields_set]
    if fit:
        words = ", ".join(f"calibration.{key}" for key in fit)
        yield f"{words}: not simulated, since coefficients are known from the start"
