"""Which workers a request may go to: by its own constraints, by the length of its prompt, by free slots.

Separate from the Pool, which asks at every step of a request's life, and from the roster, which knows nothing
of requests.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from router.core.request import Request
from router.core.roster import Roster
from router.core.worker import Worker


class Eligibility:
    """Reads a roster; changes nothing."""

    __slots__ = ("_roster", "late_binding")

    def __init__(self, roster: Roster, *, late_binding: bool) -> None:
        self._roster = roster
        self.late_binding = late_binding

    def candidates(self, request: Request) -> Sequence[Worker]:
        """Workers that the request itself allows: ready ones, or the one that it is pinned to.

        What is stored at one worker is nowhere else, so that worker is asked also while it drains.
        """
        workers = (
            self._roster.reachable(request.pinned) if request.pinned is not None else self._willing(request)
        )
        if request.avoid:
            workers = [w for w in workers if w.name not in request.avoid]
        return workers

    def _willing(self, request: Request) -> Sequence[Worker]:
        """Workers that are there for requests of this kind."""
        workers = self._roster.ready(request.model)
        return [w for w in workers if w.does_both] if request.both else workers

    def suited_to(self, request: Request) -> Sequence[Worker]:
        """Of the candidates those whose context takes its prompt; all of them when none does, for the engine
        knows the exact length and says it better."""
        workers = self.candidates(request)
        model, tokens = request.model, request.prompt_tokens
        if self._roster.fits_all(model, tokens):
            return workers
        return [w for w in workers if w.fits(model, tokens)] or workers

    def with_room(self, workers: Sequence[Worker], request: Request) -> Sequence[Worker]:
        """Those that can take it at once.

        Without late binding the engines queue. Where nobody said how many slots there are they do too, for
        nobody can tell when one is full.
        """
        return self._with_slots(workers, request.sequences)

    def _with_slots(self, workers: Sequence[Worker], sequences: int) -> Sequence[Worker]:
        """Those with free slots; a request of more sequences than slots takes an empty worker."""
        if not self.late_binding:
            return workers
        if sequences == 1:  # nearly always, and asked for every worker at every placement
            return [w for w in workers if w.slots is None or w.mirror.sequences < w.slots]
        return [w for w in workers if w.slots is None or w.slots - w.sequences >= min(sequences, w.slots)]

    def open_to(self, request: Request) -> Sequence[Worker]:
        """The workers that may be offered to a policy for this request now."""
        return self.with_room(self.suited_to(request), request)

    def kind(self, request: Request) -> Hashable | None:
        """What requests have in common that may be offered the same workers and need the same room; None for
        one with wishes of its own. Nothing in a round makes room, so when one finds nobody, no other of its
        kind does."""
        if request.pinned is not None or request.avoid:
            return None
        model, tokens = request.model, request.prompt_tokens
        # Prompts that are too long for some workers are offered others than those of another length.
        long = None if self._roster.fits_all(model, tokens) else tokens
        return model, request.split, request.both, request.sequences, long

    def in_vain(self, request: Request) -> bool:
        """Whether nobody can take it, now or soon.

        A retry does not wait for a worker that is not there yet, nor does one that a single worker can serve.
        """
        if self.candidates(request):
            return False
        waits = request.attempt == 0 and request.pinned is None
        return not (waits and self._roster.hopeful(request.model))

    def __repr__(self) -> str:
        binding = "late" if self.late_binding else "early"
        return f"<Eligibility {binding} binding, {self._roster!r}>"
