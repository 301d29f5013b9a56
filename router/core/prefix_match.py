"""How much of one prompt is cached at which worker: what the prefix index answers."""

from __future__ import annotations

import msgspec

from router.core.prefix_slots import Slots
from router.core.prefix_tree import Depths


class Match(msgspec.Struct, frozen=True):
    """Cached tokens of one prompt, by worker.

    Attributes:
        prompt_tokens: of the whole prompt, as the caller estimated it.
        tokens: by worker, at most `prompt_tokens - 1`: an engine computes the last one always. Who holds
            nothing, or is not to be trusted, is absent.
    """

    prompt_tokens: int
    tokens: dict[str, int]

    def on(self, worker: str) -> int:
        """Tokens believed to be cached at one worker."""
        return self.tokens.get(worker, 0)

    @property
    def longest(self) -> int:
        """The most that any worker holds."""
        return max(self.tokens.values(), default=0)

    def take(self, depths: Depths, slots: Slots) -> None:
        """Adds depths in tokens, of disjoint masks of `slots`. What is known and greater stays."""
        most, known = self.prompt_tokens - 1, self.tokens
        before = known.copy()
        for length, mask in depths:
            held = min(length, most)
            if held > 0:
                known.update(dict.fromkeys(slots.names(mask), held))
        for name, held in before.items():
            known[name] = max(known[name], held)
