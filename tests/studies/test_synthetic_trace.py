"""Laws of the trace that ships."""

from __future__ import annotations

from router.studies.data import SYNTHETIC
from router.studies.data.generate import REQUESTS, SEED, encode, lines
from router.studies.traces import read_trace, statistics


def test_the_file_is_what_its_generator_makes() -> None:
    assert SYNTHETIC.read_bytes() == encode(lines())


def test_another_seed_makes_another_trace_and_the_same_seed_the_same() -> None:
    assert lines(SEED + 1) != lines(SEED)
    assert lines(SEED) == lines(SEED)


def test_it_is_read_as_mooncake_and_shares_prefixes() -> None:
    trace = read_trace(SYNTHETIC)
    figures = statistics(trace)
    assert (trace.format, figures.requests, trace.skipped) == ("mooncake", REQUESTS, {})
    assert figures.reuse_share is not None
    assert 0.3 < figures.reuse_share < 0.95


def test_a_block_name_always_follows_the_same_block() -> None:
    """Names stand for whole prefixes, so the names before one are the same wherever it occurs."""
    prefix_of: dict[str, tuple[str, ...]] = {}
    for entry in read_trace(SYNTHETIC).entries:
        for place, name in enumerate(entry.blocks):
            assert prefix_of.setdefault(name, entry.blocks[:place]) == entry.blocks[:place]


def test_it_fits_into_a_small_context() -> None:
    assert max(e.prompt_tokens + e.output_tokens for e in read_trace(SYNTHETIC).entries) < 16_384
