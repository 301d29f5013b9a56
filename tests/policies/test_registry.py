"""Names, parameters, and the page made from the docstrings."""

from __future__ import annotations

from dataclasses import fields

import pytest

from router.policies import POLICIES, PolicyError, build
from router.policies.pages import render
from router.policies.spec import bounds_of
from tests.policies.write_pages import PAGE

every_policy = pytest.mark.parametrize("name", list(POLICIES))
every_parameter = pytest.mark.parametrize(
    ("name", "parameter"),
    [(spec.name, parameter) for spec in POLICIES.values() for parameter in fields(spec.parameters)],
    ids=lambda value: value if isinstance(value, str) else value.name,
)


def test_the_names_are_those_of_the_design() -> None:
    assert set(POLICIES) == {
        "balance_route_0",
        "balance_route_h",
        "cache_aware",
        "calibrated",
        "joint",
        "preble",
        "random",
        "round_robin",
        "least_requests",
        "least_tokens",
        "least_work",
        "power_of_two",
        "length_threshold",
        "session_affinity",
    }


def test_an_unknown_policy_is_refused_with_the_known_ones() -> None:
    with pytest.raises(PolicyError, match=r"'least_request' is unknown; allowed: .*least_requests, .*random"):
        build("least_request", {}, 1)


@every_policy
def test_an_unknown_parameter_is_refused_with_its_value(name: str) -> None:
    with pytest.raises(PolicyError, match=rf"'{name}' has no parameter 'colour' \(given: 'red'\); it has: "):
        build(name, {"colour": "red"}, 1)


@every_parameter
@pytest.mark.parametrize("value", [None, True, "many", [], float("nan"), float("inf"), -1, 10**12, 10**400])
def test_a_value_out_of_bounds_is_refused_with_what_is_allowed(
    name: str, parameter: object, value: object
) -> None:
    bounds = bounds_of(parameter)  # type: ignore[arg-type]  # pytest passes it through
    key = parameter.name  # type: ignore[attr-defined]  # as above
    with pytest.raises(PolicyError) as refused:
        build(name, {key: value}, 1)
    assert str(refused.value) == f"policy {name!r}: parameter {key!r} is {value!r}; allowed: {bounds}"


@every_parameter
def test_bounds_and_default_are_allowed_and_bounds_are_inclusive(name: str, parameter: object) -> None:
    bounds = bounds_of(parameter)  # type: ignore[arg-type]  # as above
    for value in bounds.words or (bounds.low, bounds.high, parameter.default):  # type: ignore[attr-defined]  # as above
        build(name, {parameter.name: value}, 1)  # type: ignore[attr-defined]  # as above


def test_a_fraction_is_no_whole_number() -> None:
    with pytest.raises(
        PolicyError, match=r"'threshold_tokens' is 2048\.0; allowed: a whole number from 1 to 10,000,000"
    ):
        build("length_threshold", {"threshold_tokens": 2048.0}, 1)


def test_two_builds_share_no_state() -> None:
    assert build("round_robin", {}, 1) is not build("round_robin", {}, 1)


@every_policy
def test_a_docstring_says_all_that_a_user_asks(name: str) -> None:
    page = POLICIES[name].page
    assert page is not None
    assert page.split("\n\n")[0].strip().endswith(".")
    for part in ("Source", "Inputs", "Formula", "Parameters", "Use it when", "Not when", "Absent data"):
        assert f"\n\n**{part}" in page


@every_parameter
def test_a_docstring_gives_default_and_bounds_as_they_are(name: str, parameter: object) -> None:
    page = " ".join((POLICIES[name].page or "").split())
    key = parameter.name  # type: ignore[attr-defined]  # as above
    default, bounds = parameter.default, bounds_of(parameter)  # type: ignore[attr-defined, arg-type]  # as above
    assert f"- `{key}` (default {default}; allowed: {bounds}):" in page


def test_the_page_of_the_policies_is_fresh() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), "run python -m tests.policies.write_pages"
