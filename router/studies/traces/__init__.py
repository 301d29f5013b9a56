"""Request traces: who asked for how many tokens, when, and which prefix they shared with others."""

from router.studies.traces.files import FORMATS, read_trace
from router.studies.traces.trace import LineError, Trace, TraceEntry, TraceError, TraceStatistics, statistics

__all__ = [
    "FORMATS",
    "LineError",
    "Trace",
    "TraceEntry",
    "TraceError",
    "TraceStatistics",
    "read_trace",
    "statistics",
]
