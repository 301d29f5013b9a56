"""Routes of vLLM that are asked for rarely: FastAPI path functions.

Separate from the fast routes, which do without a framework.
"""

from __future__ import annotations

from fastapi import FastAPI


def rest_app() -> FastAPI:
    """Build the application for every path that has no fast route."""
    return FastAPI(openapi_url=None)
