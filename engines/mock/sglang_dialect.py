"""Placeholder."""

from __future__ import annotations

from fastapi import FastAPI

from engines.mock.front import Endpoint, Front


def sglang_dialect(front: Front, routes: dict[str, dict[str, Endpoint]], rest: FastAPI) -> None:
    """Give."""
