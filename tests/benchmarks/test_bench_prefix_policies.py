"""Laws of the measuring of policies that follow prefixes: all of them, on prompts as long as they say."""

from __future__ import annotations

import pytest

from benchmarks import prefix_policies
from benchmarks.prefix_policies import WORKLOADS, Bench, Workload
from router.core.prefixes import Binds
from router.policies import POLICIES


def test_every_policy_that_asks_for_prefixes_is_measured() -> None:
    asking = {name for name, spec in POLICIES.items() if isinstance(spec.factory(spec.check({}), 1), Binds)}
    assert set(prefix_policies.POLICIES) == asking


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=list(WORKLOADS))
def test_prompts_are_as_long_as_the_workload_says_and_share_its_heads(workload: Workload) -> None:
    made = list(prefix_policies.requests(workload, 6))
    for request in made:
        assert request.key is not None
        assert len(request.key.canonical) == pytest.approx(4 * request.prompt_tokens, rel=0.01)
    heads = {bytes(request.key.canonical[: 4 * workload.shared_tokens]) for request in made if request.key}  # type: ignore[arg-type]  # text
    assert len(heads) < len(made)


def test_decisions_leave_nothing_behind() -> None:
    bench = Bench("preble", 4)
    for request in prefix_policies.requests(Workload(100, 10, 3), 20):
        assert bench.decide(request) > 0
    assert bench.prefixes.claims == 0


def test_the_quick_run_has_a_line_per_policy_and_workload() -> None:
    verdicts = prefix_policies.measure(quick=True)
    assert len(verdicts) == len(prefix_policies.POLICIES) * len(WORKLOADS)
    assert all(verdict.figure > 0 for verdict in verdicts)
