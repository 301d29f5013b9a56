"""One answer as it grows: tokens in, text out, with stop strings and unfinished characters held back.

Separate from the generation that collects answers because this part is pure and exact.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from functools import lru_cache

from engines.mock.ask import Answer, Piece, Sampling
from engines.model.text import text_bytes


class OutputSequence:
    """The text side of one engine job.

    A token may end inside a UTF-8 character: its bytes wait for the next token, and the piece's text is
    empty, as the recorded engine does. Text that may be the beginning of a stop string waits too.
    """

    def __init__(self, index: int, job_id: str, sampling: Sampling) -> None:
        self.index = index
        self.job_id = job_id
        self.text = ""
        self.token_ids: list[int] = []
        self.finish_reason: str | None = None
        self.stop_reason: str | int | None = None
        self._sampling = sampling
        self._script = sampling.script
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._split = False
        self._held = ""

    def __repr__(self) -> str:
        return f"<OutputSequence {self.job_id} {len(self.token_ids)} tokens, {self.finish_reason or 'open'}>"

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    def garble(self) -> None:
        """Say what comes, and not what the script has: the engine computes over KV of something else."""
        self._script = None

    def feed(self, token_ids: Sequence[int], finish_reason: str | None) -> Piece:
        """Add one step's tokens and return what became visible.

        When a stop string appears, the sequence ends here although its job does not: `finished` is true
        and the caller aborts the job.
        """
        token_ids, finish_reason = self._scripted(token_ids, finish_reason)
        stopped_by = self._stop_token(token_ids)
        if stopped_by is not None:
            self.stop_reason = token_ids[stopped_by]
            finish_reason = "stop"
            token_ids = token_ids[: stopped_by + 1]
        self.token_ids += token_ids
        fresh = self._decoded(token_ids, final=finish_reason is not None)
        if self._sampling.stop:
            fresh, finish_reason = self._cut(fresh, finish_reason)
        self.text += fresh
        self.finish_reason = finish_reason
        return Piece(self.index, fresh, list(token_ids), finish_reason, self.stop_reason)

    def close(self, finish_reason: str) -> Piece:
        """End from outside (abort): what was held back becomes visible."""
        fresh, self._held = self._held + self._decoder.decode(b"", True), ""
        self.text += fresh
        self.finish_reason = finish_reason
        return Piece(self.index, fresh, [], finish_reason, None)

    def answer(self) -> Answer:
        """Return the whole answer; asked for once it is finished."""
        return Answer(self.index, self.text, self.token_ids, self.finish_reason or "abort", self.stop_reason)

    def _stop_token(self, token_ids: Sequence[int]) -> int | None:
        """Where the first stop token is, once there are enough tokens; None when there is none."""
        stops, before = self._sampling.stop_token_ids, len(self.token_ids)
        if not stops:
            return None
        for at, token in enumerate(token_ids):
            if token in stops and before + at + 1 >= self._sampling.min_tokens:
                return at
        return None

    def _decoded(self, token_ids: Sequence[int], *, final: bool) -> str:
        """Decode tokens; a lone token of ASCII text, by far the most frequent, takes the short way."""
        if len(token_ids) == 1 and not self._split:
            text = _ascii_text(token_ids[0])
            if text is not None:
                return text
        fresh = self._decoder.decode(text_bytes(token_ids), final)
        self._split = bool(self._decoder.getstate()[0])
        return fresh

    def _scripted(
        self, token_ids: Sequence[int], finish_reason: str | None
    ) -> tuple[Sequence[int], str | None]:
        """Put the script's tokens in the place of sampled ones; the script's end is a stop."""
        script = self._script
        if script is None:
            return token_ids, finish_reason
        at = len(self.token_ids)
        if finish_reason == "length" and at + len(token_ids) >= len(script):
            finish_reason = "stop"
        return script[at : at + len(token_ids)], finish_reason

    def _cut(self, fresh: str, finish_reason: str | None) -> tuple[str, str | None]:
        """Look for stop strings in the text that is not yet visible."""
        window = self._held + fresh
        self._held = ""
        if len(self.token_ids) >= self._sampling.min_tokens:
            hit = min(
                ((at, stop) for stop in self._sampling.stop if (at := window.find(stop)) >= 0),
                default=None,
            )
            if hit is not None:
                at, stop = hit
                self.stop_reason = stop
                return window[: at + len(stop) if self._sampling.include_stop else at], "stop"
        if finish_reason is not None:
            return window, finish_reason
        keep = _possible_beginning(window, self._sampling.stop)
        if keep:
            self._held = window[-keep:]
            return window[:-keep], None
        return window, None


@lru_cache(maxsize=1 << 14)
def _ascii_text(token_id: int) -> str | None:
    """The text of one token when no character can span its edges, else None."""
    data = text_bytes((token_id,))
    return data.decode("ascii") if data.isascii() else None


def _possible_beginning(text: str, stops: Sequence[str]) -> int:
    """Return how many last characters of the text may begin a stop string."""
    longest = max(len(stop) for stop in stops) - 1
    for size in range(min(longest, len(text)), 0, -1):
        if any(stop.startswith(text[-size:]) for stop in stops):
            return size
    return 0
