"""The pure model of one LLM engine: its hardware, its step times, its KV cache, its scheduler.

Synchronous, without I/O and without a clock: `now` is an argument and every random draw is a hash of the
prompt and a seed. So the mock server, the simulator and the tests drive the same engine.
"""
