"""`docs/policies.md`, made from the docstrings of the policies. Pure: whoever calls it writes the file."""

from __future__ import annotations

from router.policies import POLICIES
from router.policies.spec import PolicySpec

_HEAD = """# Policies

Made from the docstrings in `router/policies`; do not edit. `python -m tests.policies.write_pages` makes it
anew.

A policy chooses a worker among the eligible ones of a pool. It reads and changes nothing; the pool charges.
Where a formula says capacity, it is the relative speed of the worker, 1.0 being the mean of the pool; warmup
is an extra load factor, 1.0 normally and up to 2.0 for a worker that came back lately. "By hash" means by a
hash of the seed, the arrival number of the request, its number of tries and a worker's name: unbiased, the
same at each call, and with no generator that a dry run could advance. Workers that a request has already
failed on are left out before a policy is asked.

| policy | in one sentence | pools | cost |
|---|---|---|---|
"""


def render() -> str:
    """The whole page as Markdown."""
    rows = "".join(_row(spec) for spec in POLICIES.values())
    return _HEAD + rows + "".join(_section(spec) for spec in POLICIES.values())


def _page(spec: PolicySpec) -> str:
    if spec.page is None:
        raise ValueError(f"the file of policy {spec.name!r} has no docstring (python -OO drops them)")
    return spec.page.strip()


def _row(spec: PolicySpec) -> str:
    sentence = " ".join(_page(spec).split("\n\n")[0].split())
    roles = ", ".join(sorted(role.value for role in spec.roles))
    return f"| [{spec.name}](#{spec.name}) | {sentence} | {roles} | {spec.cost_unit} |\n"


def _section(spec: PolicySpec) -> str:
    return f"\n## {spec.name}\n\nShape: {spec.shape.value}.\n\n{_page(spec)}\n"
