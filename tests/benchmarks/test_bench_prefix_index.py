"""Laws of the measuring of the prefix index: what it says is stored is stored."""

from __future__ import annotations

from benchmarks import prefix_index


def test_the_text_beside_a_prompt_is_in_the_index_as_it_is() -> None:
    milliseconds, stored = prefix_index.text_ms(8 * 128 * 1024, samples=4)
    assert stored == 8 * 128 * 1024
    assert milliseconds > 0.0


def test_every_fourth_prompt_continues_a_known_one() -> None:
    known = [bytes([number]) * 160 for number in range(3)]
    turns = list(prefix_index.turns(lambda: b"\xff" * 160, known, 8))
    shared = [any(turn[:150] == one[:150] for one in known) for turn in turns]
    assert shared == [True, False, False, False] * 2
