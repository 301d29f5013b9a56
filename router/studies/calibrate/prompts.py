"""The texts that are sent: prompts of a wanted length that nobody has seen before, and samples of real text.

Separate because their lengths are arithmetic, and what is sent is not what is measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from router.studies.replay.prompts import Tokenizer, words

GREEDY_PROMPTS: Final = (
    "A pointsman sets the points so that each train takes the right track. Before the express comes, he ",
    "def step_time(batch, kv_tokens):\n    base = 0.012\n    return base + ",
    "1, 1, 2, 3, 5, 8, 13, 21, 34, ",
)
"""Prompts whose greedy answers every engine of a pool must give alike."""

SHORT_SAMPLE: Final = "The quick brown fox."
LONG_SAMPLE: Final = (
    SHORT_SAMPLE
    + """ Railways were built for coal before they were built for people. A horse that could carry one
hundred kilograms on its back could pull ten tonnes on a smooth iron rail, and that was reason enough. The
first lines had a single track; trains met at stations, where one had to wait for the other. Somebody had to
decide which one, and somebody had to move the points. When traffic grew, both became trades of their own.

Die Weiche wird gestellt, bevor der Zug kommt; wer zu spät stellt, stellt falsch. Así se aprende el oficio:
mirar lejos, decidir pronto. 列车到达之前，道岔必须就位。

def route(train, tracks):
    \"\"\"The free track that is nearest, None when all are taken.\"\"\"
    free = [track for track in tracks if track.occupied_by is None]
    return min(free, key=lambda track: abs(track.number - train.number), default=None)

{"train": "IC 2043", "departs": "07:42:00", "platform": 4, "stops": ["North Yard", "Old Mill", "Harbour"],
 "delay_s": null, "cars": [{"class": 1, "seats": 54}, {"class": 2, "seats": 80}, {"class": 2, "seats": 80}]}

| station | arrives | leaves |
|---|---|---|
| North Yard | 08:01 | 08:03 |
| Old Mill | 08:19 | 08:20 |
"""
)
"""English above all, three other languages, code, JSON and a table: what people send, in little."""


@dataclass(frozen=True, slots=True)
class Prompts:
    """Writes prompts for one engine.

    Attributes:
        run: differs between two calibrations, so that no prefix cache knows the prompts of the last one.
        tokenizer: how the engine counts.
    """

    run: str
    tokenizer: Tokenizer

    def write(self, tokens: int, *names: object) -> str:
        """A prompt of about `tokens` tokens that begins like no other: `names` say which one it is."""
        return words("/".join(map(str, (self.run, *names))), self.tokenizer.words_for(tokens))
