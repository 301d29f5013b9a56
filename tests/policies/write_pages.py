"""Writes docs/policies.md anew: `python -m tests.policies.write_pages`."""

from __future__ import annotations

from pathlib import Path

from router.policies.pages import render

PAGE = Path(__file__).parents[2] / "docs" / "policies.md"

if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
