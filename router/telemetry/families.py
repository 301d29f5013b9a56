"""The names of all counters and histograms, on one page.

Separate so that an operator, a dashboard and the test that holds them together read one list. The gauges are
in `gauges`.
"""

from __future__ import annotations

from collections.abc import Iterator

from router.telemetry.handover_families import HandoverFamilies
from router.telemetry.round_families import RoundFamilies
from router.telemetry.series import CounterFamily, HistogramFamily

REQUEST_BOUNDS_S = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0,
    600.0, 1800.0, 3600.0,
)  # fmt: skip
"""1 ms to 1 h: a reasoning request may take that long, and quantiles stop at the last bound."""

TOKEN_BOUNDS_S = (
    0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5,
    1.0, 2.5, 10.0, 60.0, 600.0, 3600.0,
)  # fmt: skip
"""Times per token: finest where SLOs of 10 to 100 ms lie."""

OWN_BOUNDS_S = (
    0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 1.0,
)  # fmt: skip
"""The router's own work: a pick takes tens of microseconds, which buckets from 1 ms would not show."""

WORKER_BOUNDS_S = (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 600.0)
"""Per worker, coarser: there may be hundreds of workers."""


class RequestFamilies:
    """Of requests as the client sees them."""

    def __init__(self) -> None:
        # One statement for each metric: long, and cut in two no shorter to read.
        self.requests = CounterFamily(
            "pointsman_requests_total",
            "Requests that are over, by the status the client got; 499: it left before the end.",
            ("api", "model", "status"),
        )
        self.errors = CounterFamily(
            "pointsman_request_errors_total",
            "Requests that ended in an error of the router's making or relaying, by where it arose.",
            ("model", "code", "phase"),
        )
        self.retries = CounterFamily(
            "pointsman_retries_total",
            "Attempts after the first, by what made them necessary.",
            ("model", "reason"),
        )
        self.duration = HistogramFamily(
            "pointsman_request_duration_seconds",
            "First byte of the request to the last of the answer.",
            REQUEST_BOUNDS_S,
            ("api", "model"),
        )
        self.ttft = HistogramFamily(
            "pointsman_ttft_seconds",
            "First byte of the request to the first data event, or to the body when not streamed.",
            REQUEST_BOUNDS_S,
            ("api", "model"),
        )
        self.slo = CounterFamily(
            "pointsman_slo_requests_total",
            "Answers to requests that have targets, by whether they were met; the share of yes is goodput.",
            ("model", "class", "met"),
        )
        self.inter_token = HistogramFamily(
            "pointsman_inter_token_seconds",
            "Gap between two events of a stream that carry output.",
            TOKEN_BOUNDS_S,
            ("api", "model"),
        )
        self.tpot = HistogramFamily(
            "pointsman_tpot_seconds",
            "Mean time per output token after the first, one observation a request.",
            TOKEN_BOUNDS_S,
            ("api", "model"),
        )


class RouterFamilies:
    """Of the router's own work, and of what it carried."""

    def __init__(self) -> None:
        # One statement for each metric: long, and cut in two no shorter to read.
        self.queue = HistogramFamily(
            "pointsman_queue_seconds",
            "Waiting in the router for a worker.",
            REQUEST_BOUNDS_S,
            ("model",),
        )
        self.overhead = HistogramFamily(
            "pointsman_overhead_seconds",
            "The router's own share of the time to the first byte, waiting in its queue not included.",
            OWN_BOUNDS_S,
            ("model",),
        )
        self.decision = HistogramFamily(
            "pointsman_decision_seconds",
            "Time one call of a policy took.",
            OWN_BOUNDS_S,
            ("policy",),
        )
        self.tokenized = CounterFamily(
            "pointsman_tokenized_prompts_total",
            "Prompts of text for pools with a tokenizer, by whether their tokens are known, or why not.",
            ("pool", "outcome"),
        )
        self.tokenizing = HistogramFamily(
            "pointsman_tokenize_seconds",
            "Time that a request waited for the tokens of its prompt.",
            OWN_BOUNDS_S,
            ("pool",),
        )
        self.prompt_tokens = CounterFamily(
            "pointsman_prompt_tokens_total",
            "Prompt tokens of finished requests: hit and miss where the engine told, else unreported.",
            ("model", "cache"),
        )
        self.output_tokens = CounterFamily(
            "pointsman_output_tokens_total",
            "Output tokens of finished requests.",
            ("model",),
        )
        self.disconnects = CounterFamily(
            "pointsman_client_disconnects_total",
            "Clients that left before the end, by the phase the request was in.",
            ("phase",),
        )
        self.deadlines = CounterFamily(
            "pointsman_deadline_exceeded_total",
            "Deadlines that ran out, by which.",
            ("phase",),
        )
        self.request_log_dropped = CounterFamily(
            "pointsman_request_log_dropped_lines_total",
            "Lines of the request log that were given up because the disk was slow or full.",
        )
        self.decision_log_dropped = CounterFamily(
            "pointsman_decision_log_dropped_lines_total",
            "Lines of the decision log that were given up because the disk was slow or full.",
        )
        self.task_restarts = CounterFamily(
            "pointsman_task_restarts_total",
            "Background tasks that failed and were started again.",
            ("task",),
        )


class WorkerFamilies:
    """Of one worker each."""

    def __init__(self) -> None:
        self.decisions = CounterFamily(
            "pointsman_policy_decisions_total",
            "Choices by policy, reason and worker.",
            ("policy", "reason", "worker"),
        )
        self.upstream_responses = CounterFamily(
            "pointsman_upstream_responses_total",
            "Answers of workers by status; none: the connection failed or broke before one.",
            ("worker", "code"),
        )
        self.worker_ttft = HistogramFamily(
            "pointsman_worker_ttft_seconds",
            "Request sent to a worker to its first data event.",
            WORKER_BOUNDS_S,
            ("worker",),
        )
        self.turn = HistogramFamily(
            "pointsman_worker_turn_seconds",
            "Waiting in the router for a turn at the worker that was chosen.",
            WORKER_BOUNDS_S,
            ("worker",),
        )
        self.transitions = CounterFamily(
            "pointsman_worker_transitions_total",
            "Changes of a worker's state, by the new one.",
            ("worker", "state"),
        )
        self.scrapes = CounterFamily(
            "pointsman_worker_scrapes_total",
            "Scrapes of a worker's metrics by outcome.",
            ("worker", "outcome"),
        )
        self.probes = CounterFamily(
            "pointsman_worker_probes_total",
            "Health probes of a worker by outcome.",
            ("worker", "outcome"),
        )


class Families(RequestFamilies, RouterFamilies, HandoverFamilies, RoundFamilies, WorkerFamilies):
    """One set of all counters and histograms; iterates in the order above, which is that of exposition."""

    def __init__(self) -> None:
        RequestFamilies.__init__(self)
        RouterFamilies.__init__(self)
        HandoverFamilies.__init__(self)
        RoundFamilies.__init__(self)
        WorkerFamilies.__init__(self)

    def __iter__(self) -> Iterator[CounterFamily | HistogramFamily]:
        yield from vars(self).values()

    def retain_workers(self, names: frozenset[str]) -> None:
        """Drop the series of every worker that is not among `names`."""
        for family in self:
            if "worker" in family.labels:
                family.retain("worker", names)
