"""Lengths of requests that repeat: by the hash of the whole prompt, and by that of its template.

Separate because what counts as a repetition is a question about prompts, not about lengths. Source:
ExactMatch of BalanceRoute, arXiv 2605.06113; the paper leaves open what a template is.
"""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b

from router.core.predict_survival import RecentLengths
from router.core.prompt_key import BLOCK_CHARACTERS, Partition, PromptKey

_TEMPLATE_TOKENS = BLOCK_CHARACTERS // 4
_MESSAGE = b"\xffm"
_SYSTEM_ROLES = frozenset({b"system", b"developer"})


def prompt_hash(key: PromptKey, salt: bytes) -> int:
    """64 bits for the whole prompt. Salted, since the hashes are saved and prompts can be guessed."""
    return _hash(key.digest.encode(), salt)


def template_hash(key: PromptKey, salt: bytes) -> int | None:
    """64 bits for what requests of one application share; None for a prompt too short to have a template."""
    template = _template(key.canonical)
    return None if template is None else _hash(_partition(key.partition) + template, salt)


def _template(canonical: bytes | tuple[int, ...]) -> bytes | None:
    """What stands before the first message of a user: options, tools, documents, system. Where that is
    nothing, the first 256 bytes, or a quarter as many token ids, of a longer prompt."""
    if isinstance(canonical, tuple):
        head = canonical[:_TEMPLATE_TOKENS]
        return b",".join(b"%d" % token for token in head) if len(canonical) > _TEMPLATE_TOKENS else None
    start = canonical.find(_MESSAGE)
    while start >= 0:
        end = canonical.find(b"\xff", start + 2)
        if canonical[start + 2 : end if end >= 0 else None] not in _SYSTEM_ROLES:
            break
        start = canonical.find(_MESSAGE, start + 2)
    if start > 0:
        return canonical[:start]
    return canonical[:BLOCK_CHARACTERS] if len(canonical) > BLOCK_CHARACTERS else None


def _partition(partition: Partition) -> bytes:
    return b"\xff".join([*(part.encode("utf-8", "surrogatepass") for part in partition), b""])


def _hash(data: bytes, salt: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8, key=salt).digest(), "big")


class MatchedLengths:
    """Lengths by hash; the hash used longest ago is dropped beyond `limit`.

    Args:
        lengths: how many each remembers; half_life_s: of a length.
    """

    __slots__ = ("_by_hash", "_half_life_s", "_lengths", "_limit")

    def __init__(self, limit: int, lengths: int, half_life_s: float) -> None:
        self._limit = limit
        self._lengths = lengths
        self._half_life_s = half_life_s
        self._by_hash: OrderedDict[int, RecentLengths] = OrderedDict()

    def get(self, key: int | None) -> RecentLengths | None:
        """Changes nothing."""
        return None if key is None else self._by_hash.get(key)

    def of(self, key: int) -> RecentLengths:
        """Those of a hash, new ones if it has none; the hash used longest ago makes room."""
        known = self._by_hash.get(key)
        if known is None:
            known = self._by_hash[key] = RecentLengths(self._lengths, self._half_life_s)
            if len(self._by_hash) > self._limit:
                self._by_hash.popitem(last=False)
        self._by_hash.move_to_end(key)
        return known

    def copy(self) -> MatchedLengths:
        """The same lengths, with a future of their own."""
        twin = MatchedLengths(self._limit, self._lengths, self._half_life_s)
        twin._by_hash = OrderedDict((key, lengths.copy()) for key, lengths in self._by_hash.items())
        return twin

    def items(self) -> list[tuple[int, RecentLengths]]:
        """The hash used longest ago first."""
        return list(self._by_hash.items())

    def __len__(self) -> int:
        return len(self._by_hash)

    def __repr__(self) -> str:
        return f"<MatchedLengths [{len(self._by_hash)} of {self._limit} hashes]>"
