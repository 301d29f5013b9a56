"""What every policy that follows prefixes has in common: where it asks about them.

Separate because each of them is bound to its pool's prefixes in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from router.core.prefix_match import Match
from router.core.prefix_settings import TreeBound
from router.core.prefixes import Prefixes
from router.core.request import Request


@dataclass(slots=True, kw_only=True)
class FollowsPrefixes:
    """A policy that asks what workers hold.

    State: `prefixes` of the pool that has put it in use, None before.
    """

    prefixes: Prefixes | None = field(default=None, repr=False)

    def bind(self, prefixes: Prefixes) -> None:
        """Asks these about prefixes from now on, and says how much text of one worker they should keep."""
        self.prefixes = prefixes
        prefixes.bound(self.tree_bound)

    @property
    def tree_bound(self) -> TreeBound:
        """How much text one worker is believed to hold at most."""
        return TreeBound()

    def matched(self, request: Request) -> Match:
        """Who holds how much of its prompt; nobody does without an index."""
        if self.prefixes is None:
            return Match(request.prompt_tokens, {})
        return self.prefixes.matched(request)
