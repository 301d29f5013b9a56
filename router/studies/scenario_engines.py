"""What the workers of a configuration are made of: the mock engine on the same port, else what was measured.

Separate from the scenario, which puts them into pools. Nothing is guessed: a worker of which nobody knows how
fast it is ends the study with a sentence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from engines.model.engine import EngineConfig
from engines.model.handover import TransferLink
from engines.model.job import SCHEDULINGS
from engines.model.roofline import StepClock, StepLoad
from engines.model.sizing import EngineSize, SizingError, sized
from router.core.step_model import StepModel
from router.settings import MockGroup, PoolSettings, Settings, WorkerSettings
from router.settings.calibration_file import CalibrationFile, WorkerMeasured
from router.settings.refusals import closest
from router.settings.workers import parse_worker_url
from router.studies.simulation.known import measured

_MEASURED_BLOCK_TOKENS = 16
_MEASURED_SEQS, _MEASURED_BATCH_TOKENS = 256, 2_048
"""vLLM's block and batch on a GPU of less than 70 GiB, for engines of which only the times are known."""
_MOST_BLOCKS = 10_000_000
_FLAGS = frozenset((
    "api-key", "block-size", "count", "dialect", "disaggregation-bootstrap-port",
    "disaggregation-timeout-s", "dp-size", "enable-auto-tool-choice", "enable-prompt-tokens-details",
    "enable-request-id-headers", "enable-server-load-tracking", "gpu", "host", "kv-abort-timeout-s",
    "kv-bandwidth-gbps", "kv-connector", "kv-events-config", "kv-events-encoding", "kv-events-endpoint",
    "kv-events-replay-endpoint", "kv-events-topic", "kv-latency-s", "kv-lease-s", "kv-load-failure-policy",
    "kv-side-channel-host", "kv-tokens", "log-level", "max-model-len", "max-num-batched-tokens",
    "max-num-queued-reqs", "max-num-seqs", "model", "no-enable-auto-tool-choice",
    "no-enable-prompt-tokens-details", "no-enable-request-id-headers", "no-enable-server-load-tracking",
    "output-tokens", "port", "restart-delay", "role", "scheduling", "scheduling-policy", "seed",
    "served-model-name", "shutdown-timeout", "sigterm", "sse-keep-alive-interval", "step-times",
    "time-scale",
))  # fmt: skip
"""Of `pointsman mock`. Those that change no time are passed over; one that is not here would be refused when
the engines start, and must not be simulated as if it were nothing."""
_DEFAULT_PORTS = {"http": 80, "https": 443}


class ScenarioError(ValueError):
    """A configuration that cannot be simulated. The sentence says what is missing or contradicts."""


@dataclass(frozen=True, slots=True)
class MeasuredClock:
    """The clock of an engine that was measured: the laws of its calibration.

    A chunk of n tokens over c cached ones costs what a whole prompt of c + n costs beyond one of c. Where a
    step gives several tokens, each takes its share of it.
    """

    model: StepModel

    def step_from_totals(self, load: StepLoad) -> float:
        """Seconds of a step of which the sums are known."""
        model, seconds = self.model, 0.0
        if load.decode_sequences:
            seconds += (
                model.step_base_s
                + model.step_per_sequence_s * load.decode_sequences
                + model.step_per_kv_token_s * load.decode_kv_tokens
            ) / model.tokens_per_step
        if load.prefill_sequences:
            # Positions attended are n·c + n(n+1)/2, so (c+n)² − c² is twice that less n.
            squares = 2 * load.prefill_positions - load.prefill_tokens
            seconds += (
                model.prefill_base_s
                + model.prefill_per_token_s * load.prefill_tokens
                + model.prefill_per_token_squared_s * squares
            )
        return seconds

    def decode_steps(self, sequences: int, kv_tokens: int, steps: int) -> list[float]:
        """Seconds of so many steps in a row in which all decode."""
        model = self.model
        always = model.step_base_s + model.step_per_sequence_s * sequences
        return [
            (always + model.step_per_kv_token_s * kv) / model.tokens_per_step
            for kv in range(kv_tokens, kv_tokens + sequences * steps, sequences)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One engine.

    Attributes:
        slow: seconds of the clients' clock in one second of the engine's.
        link: how KV gets to it; None where nobody knows.
        calibrated: what the router knows of its times, None for nothing.
    """

    engine: EngineConfig
    clock: StepClock
    slow: float = 1.0
    link: TransferLink | None = None
    calibrated: StepModel | None = None


def machine_of(
    settings: Settings, calibration: CalibrationFile | None, pool: PoolSettings, worker: WorkerSettings
) -> Machine:
    """The engine behind one worker, or behind one rank of it.

    Args:
        calibration: the file of `calibration.file`, None without one.

    Raises:
        ScenarioError: nobody says what it is, or not consistently.
    """
    known = None if calibration is None else calibration.worker(worker.name, worker.origin_url)
    found = _group_of(settings, worker)
    if found is not None:
        made = _mocked(*found, pool, worker)
    elif known is not None:
        made = _measured(worker, known[1], pool)
    else:
        raise ScenarioError(
            f"nothing says how fast the worker {worker.name} is: no group of mock.fleet has the port "
            f"{_port(worker)}, and calibration.file {_lacks(settings)}; describe it in mock.fleet, or "
            "measure it with pointsman calibrate"
        )
    if made.engine.num_blocks > _MOST_BLOCKS:
        raise ScenarioError(
            f"the KV of the worker {worker.name} would have {made.engine.num_blocks:,} blocks, and at most "
            f"{_MOST_BLOCKS:,} are simulated: no GPU holds more"
        )
    if known is not None:
        return replace(made, calibrated=known[1].step_model)
    # What live traffic teaches within its first minute.
    learned = _stretched(measured(made.clock), made.slow) if settings.calibration.online else None
    return replace(made, calibrated=learned)


def transfer_link(calibration: CalibrationFile | None, machines: Mapping[str, Machine]) -> TransferLink:
    """The wire between the engines of a pair: the slowest that any of its consumers has, else the mean of
    what was measured.

    Raises:
        ScenarioError: neither is known.
    """
    links = [machine.link for machine in machines.values() if machine.link is not None]
    if len(links) == len(machines):
        return max(links, key=lambda link: link.seconds(256))
    found = [] if calibration is None else [one for one in calibration.transfers if one.decode in machines]
    if not found:
        raise ScenarioError(
            f"nothing says how long a KV transfer to {next(iter(machines))} takes: calibration.file has no "
            "transfers to it; measure the pair with pointsman calibrate"
        )
    per_token_s = math.fsum(one.per_token_s for one in found) / len(found)
    return TransferLink(
        block_bytes=_MEASURED_BLOCK_TOKENS,
        bytes_per_s=1.0 / per_token_s if per_token_s else math.inf,
        latency_s=math.fsum(one.base_s for one in found) / len(found),
    )


# --- mock engines -----------------------------------------------------------------------------------------


def _group_of(settings: Settings, worker: WorkerSettings) -> tuple[int, MockGroup] | None:
    port = _port(worker)
    groups = enumerate(settings.mock.fleet)
    return next(((index, group) for index, group in groups if port in group.ports), None)


def _port(worker: WorkerSettings) -> int:
    parts = parse_worker_url(worker.url)
    return parts.port or _DEFAULT_PORTS[parts.scheme]


def _lacks(settings: Settings) -> str:
    return "is not set" if settings.calibration.file is None else "has no worker of its name or URL"


def _mocked(index: int, group: MockGroup, pool: PoolSettings, worker: WorkerSettings) -> Machine:
    where = f"mock.fleet[{index}]"
    flags = _Flags(where, group)
    flags.check()
    ranks, told = flags.whole("dp-size") or 1, pool.dp_size_of(worker) or 1
    if ranks != told:
        raise ScenarioError(
            f"{where} has {ranks} data-parallel ranks, but the worker {worker.name} {told}; in a simulation "
            "the router knows each rank, so say dp_size in its pool"
        )
    try:
        made = sized(flags.size)
    except SizingError as error:
        raise ScenarioError(f"{where}: {error}") from None
    slow = flags.number("time-scale") or 1.0
    bound = flags.whole("max-num-queued-reqs")
    vllm = group.dialect == "vllm"
    return Machine(
        engine=replace(
            made.config,
            max_num_queued_reqs=bound if vllm else None,
            max_num_waiting=None if vllm else bound,
            recompute_failed_loads=flags.word("kv-load-failure-policy") == "recompute",
        ),
        clock=made.clock,
        slow=slow,
        link=replace(
            made.link, bytes_per_s=made.link.bytes_per_s / slow, latency_s=made.link.latency_s * slow
        ),
    )


class _Flags:
    """The flags of one group of mock engines, as far as a simulation asks for them."""

    def __init__(self, where: str, group: MockGroup) -> None:
        self._where = where
        self._group = group

    def check(self) -> None:
        """Raises ScenarioError for a flag that the mock does not have."""
        for name in self._group.flags:
            if name not in _FLAGS:
                near = closest(name, _FLAGS)
                raise ScenarioError(
                    f"{self._where}: pointsman mock has no flag {name}"
                    + (f"; did you mean {near}?" if near else "; its flags: pointsman mock --help")
                )

    @property
    def size(self) -> EngineSize:
        """How large and fast its engines are; what it does not say is as the mock has it."""
        said: dict[str, object] = {
            "model": self.word("model") or self._group.model,
            "gpu": self.word("gpu") or self._group.gpu,
            "step_times": self.word("step-times"),
            "scheduling": self._scheduling(),
            "kv_latency_s": self.number("kv-latency-s", or_zero=True),
            "kv_bandwidth_gbps": self.number("kv-bandwidth-gbps"),
        }
        for name in ("block-size", "kv-tokens", "max-model-len", "max-num-seqs", "max-num-batched-tokens"):
            said[name.replace("-", "_")] = self.whole(name)
        return EngineSize(**{name: value for name, value in said.items() if value is not None})  # type: ignore[arg-type]  # each is read as what its field is

    def word(self, name: str) -> str | None:
        """The words of one flag, None when nobody typed it."""
        value = self._group.flags.get(name, getattr(self._group, name.replace("-", "_"), None))
        return None if value is None else str(value)

    def number(self, name: str, *, or_zero: bool = False) -> float | None:
        """The same as a number above 0. Raises ScenarioError."""
        text = self.word(name)
        if text is None:
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (0 < value < math.inf or (or_zero and value == 0)):
            least = "of at least 0" if or_zero else "above 0"
            raise ScenarioError(f"{self._where}: {name} is {text!r}, and must be a number {least}")
        return value

    def whole(self, name: str) -> int | None:
        """The same as a whole number. Raises ScenarioError."""
        value = self.number(name)
        if value is not None and value != int(value):
            raise ScenarioError(f"{self._where}: {name} is {value:g}, and must be a whole number")
        return None if value is None else int(value)

    def _scheduling(self) -> str | None:
        asked = self.word("scheduling-policy") or self.word("scheduling")
        if asked is None:
            return None
        name = asked.replace("-", "_")
        if name not in SCHEDULINGS:
            known = ", ".join(each.replace("_", "-") for each in SCHEDULINGS)
            raise ScenarioError(f"{self._where}: scheduling-policy {asked} is not known. Known: {known}.")
        return name


# --- measured engines -------------------------------------------------------------------------------------


def _measured(worker: WorkerSettings, known: WorkerMeasured, pool: PoolSettings) -> Machine:
    model, kv_tokens = known.step_model, known.kv_capacity_tokens
    if model is None or kv_tokens is None:
        lacks = "step times" if model is None else "kv_capacity_tokens"
        raise ScenarioError(
            f"calibration.file has no {lacks} of the worker {worker.name}; measure it again with pointsman "
            "calibrate, or describe it in mock.fleet"
        )
    if kv_tokens < _MEASURED_BLOCK_TOKENS:
        raise ScenarioError(
            f"calibration.file says that the KV of the worker {worker.name} holds {kv_tokens:,} tokens, "
            f"which is less than one block of {_MEASURED_BLOCK_TOKENS}; measure it again with pointsman "
            "calibrate"
        )
    engine = EngineConfig(
        num_blocks=kv_tokens // _MEASURED_BLOCK_TOKENS + 1,
        block_size=_MEASURED_BLOCK_TOKENS,
        max_model_len=kv_tokens - kv_tokens % _MEASURED_BLOCK_TOKENS,
        max_num_seqs=pool.slots_of(worker) or _MEASURED_SEQS,
        max_num_batched_tokens=_MEASURED_BATCH_TOKENS,
    )
    return Machine(engine=engine, clock=MeasuredClock(model))


def _stretched(model: StepModel, factor: float) -> StepModel:
    """The coefficients that a router sees when the engine's clock is so many times slower."""
    return replace(
        model,
        prefill_base_s=model.prefill_base_s * factor,
        prefill_per_token_s=model.prefill_per_token_s * factor,
        prefill_per_token_squared_s=model.prefill_per_token_squared_s * factor,
        step_base_s=model.step_base_s * factor,
        step_per_sequence_s=model.step_per_sequence_s * factor,
        step_per_kv_token_s=model.step_per_kv_token_s * factor,
    )
