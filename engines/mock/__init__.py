"""The mock engine: an HTTP server that a router cannot tell from vLLM or SGLang.

It is separate from `engines.model` because only this package does I/O and knows a clock.
"""
