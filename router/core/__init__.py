"""The router's decisions and state transitions: synchronous, without I/O, clock, logging or environment."""
