"""What the prefix index costs: one prompt of 128 KB matched and inserted, beside a gigabyte of distinct text.

The text is stored as it is, uncompressed, in prompts of 128 KB that share nothing; every fourth request
continues one of them, as the next turn of its conversation. Each request is matched against all workers,
inserted at one, and confirmed later, outside the measured time. Token prompts have as many tokens as 128 KB
of packed ids; half of the workers have told their blocks by events.

Other programs on the machine only ever add time, so the median is taken in rounds and the quietest round is
shown. Run with `python -m benchmarks.prefix_index`.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

from benchmarks.verdict import Verdict, print_verdicts
from router.core.kv_event import BlocksStored
from router.core.prefix_index import PrefixIndex, Prompt
from router.core.prefix_settings import PrefixSettings
from router.core.prompt_key import Partition
from router.core.trust import TrustSignal

TEXT_BOUND_MS = 0.3
BLOCKS_BOUND_MS = 3.0

_PART = Partition("model", "", "")
_PROMPT_BYTES = 128 * 1024
_PROMPT_TOKENS = _PROMPT_BYTES // 4
_GIGABYTE = 2**30
_WORKERS = 64
_ROUNDS = 8
_SAMPLES = 50  # in each
_CONTINUED = 4
_STORED_PROMPTS = 400


def _workers() -> list[str]:
    return [f"10.0.0.{number}:8000" for number in range(_WORKERS)]


def _index(max_bytes: int) -> PrefixIndex:
    index = PrefixIndex(PrefixSettings(max_bytes=max_bytes))
    for name in _workers():
        index.admit(name, 0)
    return index


def turns(fresh: Callable[[], Prompt], known: Sequence[Prompt], count: int) -> Iterator[Prompt]:
    """Prompts that nobody has seen, and every fourth one a known prompt with another end."""
    source = random.Random(5)
    for number in range(count):
        prompt = fresh()
        if number % _CONTINUED:
            yield prompt
        else:
            before = source.choice(known)
            cut = len(before) * 15 // 16
            yield before[:cut] + prompt[cut:]  # type: ignore[operator]  # both are of one kind


def _median_ms(index: PrefixIndex, turns: Iterator[Prompt]) -> float:
    source, names, samples, now = random.Random(3), _workers(), [], 1_000.0
    for prompt in turns:
        worker, now = source.choice(names), now + 0.01
        began = time.perf_counter_ns()
        index.match(_PART, prompt, _PROMPT_TOKENS)
        claim = index.insert(_PART, prompt, worker, now, prompt_tokens=_PROMPT_TOKENS)
        samples.append(time.perf_counter_ns() - began)
        if claim is not None:
            index.confirm(claim, now)
        index.sweep(now)
    size = max(len(samples) // _ROUNDS, 1)
    rounds = (samples[start : start + size] for start in range(0, len(samples), size))
    return min(statistics.median(one) for one in rounds if len(one) == size) / 1e6


def text_ms(total_bytes: int, samples: int) -> tuple[float, int]:
    """Milliseconds of a match and an insertion, and the bytes of text in the index."""
    source, names, known = random.Random(1), _workers(), []
    index = _index(total_bytes + total_bytes // 4)
    for number in range(total_bytes // _PROMPT_BYTES):
        text = source.randbytes(_PROMPT_BYTES)
        claim = index.insert(_PART, text, names[number % _WORKERS], float(number) / 100, prompt_tokens=1)
        if claim is not None:
            index.confirm(claim, float(number) / 100)
        known.append(text)
    stored = sum(len(node.edge) for node in index.store.text)
    return _median_ms(index, turns(lambda: source.randbytes(_PROMPT_BYTES), known, samples)), stored


def blocks_ms(prompts: int, samples: int) -> float:
    """Milliseconds of a match and an insertion of token ids."""
    source, names, known = random.Random(2), _workers(), []

    def fresh() -> tuple[int, ...]:
        return tuple(source.choices(range(150_000), k=_PROMPT_TOKENS))

    index = _index(2**30)
    for name in names[::2]:
        index.follow(name)
        index.stream(name, TrustSignal.COMPLETE)
    for number in range(prompts):
        tokens, name = fresh(), names[number % _WORKERS]
        claim = index.insert(_PART, tokens, name, float(number) / 100, prompt_tokens=_PROMPT_TOKENS)
        if claim is not None:
            index.confirm(claim, float(number) / 100)
        if number % _WORKERS % 2 == 0:
            hashes = tuple(source.getrandbits(64) for _ in range(_PROMPT_TOKENS // 16))
            index.apply(name, BlocksStored(_PART, hashes, None, tokens, 16))
        known.append(tokens)
    return _median_ms(index, turns(fresh, known, samples))


def measure(*, quick: bool = False) -> list[Verdict]:
    """Both keyings."""
    samples = 40 if quick else _ROUNDS * _SAMPLES
    milliseconds, stored = text_ms(_GIGABYTE // 64 if quick else _GIGABYTE, samples)
    blocks = blocks_ms(_WORKERS if quick else _STORED_PROMPTS, samples)
    gigabytes = f"{stored / 2**30:.2f} GB of text"
    return [
        Verdict(f"prefix index, 128 KB beside {gigabytes}", milliseconds, "ms", TEXT_BOUND_MS),
        Verdict("prefix index, 128 KB of token ids", blocks, "ms", BLOCKS_BOUND_MS),
    ]


if __name__ == "__main__":
    print_verdicts(measure())
