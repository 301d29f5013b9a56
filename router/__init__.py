"""Pointsman: a routing proxy in front of pools of LLM engines."""

__version__ = "0.1.0"
