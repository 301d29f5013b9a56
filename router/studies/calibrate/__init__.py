"""Measures a live fleet: prefill curves, decode steps, KV transfers, and whether its answers can be
trusted."""
