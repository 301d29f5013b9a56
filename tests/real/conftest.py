"""These run only when asked for (`make test-real`, `make test-real-pd`): the suite is the same everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.install import is_installed
from tests.real.nixl import Disaggregated, disaggregated
from tests.real.vllm import Pair, pair

HERE = Path(__file__).parent
_ENGINES = {"test_mlx_": "mlx-lm", "test_vllm_": "vllm", "test_nixl_": "nixl"}
_TARGETS = {"nixl": "make test-real-pd"}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    asked = "real" in str(config.getoption("markexpr"))
    for item in items:
        if HERE not in item.path.parents:
            continue
        engine = next((name for start, name in _ENGINES.items() if item.path.name.startswith(start)), None)
        if engine is None:
            continue
        item.add_marker(pytest.mark.real)
        if not asked:
            target = _TARGETS.get(engine, "make test-real")
            item.add_marker(pytest.mark.skip(reason=f"asks a real {engine}: {target}"))
        elif not is_installed(engine):
            item.add_marker(
                pytest.mark.skip(reason=f"{engine} is absent: python -m tests.real.install {engine}")
            )


@pytest.fixture(scope="session")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Two vLLM engines behind a router, for the whole run: they take a minute to start."""
    with pair(tmp_path_factory.mktemp("vllm")) as running:
        yield running


@pytest.fixture(scope="session")
def nixl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Disaggregated]:
    """A prefill and a decode engine, for the whole run."""
    with disaggregated(tmp_path_factory.mktemp("nixl")) as running:
        yield running
