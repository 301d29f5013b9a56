"""The synthetic trace that ships with the package, and what made it."""

from pathlib import Path

SYNTHETIC = Path(__file__).with_name("synthetic.jsonl")
"""300 requests over about a minute in Mooncake's format; see `generate`."""
