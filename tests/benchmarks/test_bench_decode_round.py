"""Laws of the measuring of a decode round: every round is the one that its name promises."""

from __future__ import annotations

import pytest

from benchmarks import decode_round


@pytest.mark.parametrize("scene", decode_round.SCENES, ids=lambda scene: scene.name)
def test_a_round_places_all_or_nobody_and_leaves_the_accounts_as_they_were(scene: decode_round.Scene) -> None:
    pools = decode_round.pair("least_tokens", scene)
    before = pools.decode.in_flight
    assert before == (0 if scene.room else scene.workers)
    if not scene.room:
        decode_round.fill(pools, scene)
    assert decode_round.pass_ms(pools, scene, rounds=2) > 0.0
    assert pools.decode.in_flight == before
    assert pools.decode.queued == (0 if scene.room else scene.waiting)
