"""The canonical prompt key: what two requests must share to share KV blocks.

Separate because prefix indexes, affinity and the request log must agree on one definition of "the same
prefix", and because most requests never need it: a key is built from the raw JSON only when somebody asks.

The text form is a byte string of typed segments. Each begins with 0xFF, a byte that UTF-8 never contains, and
one letter for its type, so no text of a client can imitate the border of a segment. Segments stand in the
order in which engines render them: template options, tools, documents, system, messages. Two keys of one
partition share KV no further than their common prefix.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from router.core.errors import InternalError
from router.core.json_bounds import MAX_TOKEN_IDS, too_many_values
from router.core.prompt_text import canonical_text

_TOKEN_LIST = msgspec.json.Decoder(tuple[int, ...])
_TOKEN_LISTS = msgspec.json.Decoder(list[msgspec.Raw])
_DIGEST_BYTES = 16
_BLOCK_HASH_BYTES = 8
_CHARACTERS_PER_TOKEN = 4

BLOCK_CHARACTERS = 256
"""Characters per hashed block in the request log."""


class Partition(NamedTuple):
    """What must be equal before any prefix may be shared."""

    model: str
    lora: str
    cache_salt: str


class PromptKey:
    """Key of the first prompt of one call; immutable, compared by what it stands for.

    Args:
        model: as the client named it.
        fields: gives the raw JSON of the body's fields that shape the prompt, by their names (`prompt`,
            `messages`, `tools`, `system`, `instructions`, `input` …); others are ignored. Called when the
            key is first needed, and when somebody asks for them.
        lora: adapter named by the client, "" for none.
        cache_salt: the client's own salt, "" for none.

    Attributes:
        tokens: ids that a text prompt becomes in the engine; None where nobody made them. They are what it is
            cached by, and no part of what the key stands for.
    """

    __slots__ = ("_canonical", "_fields", "_kept", "partition", "tokens")

    def __init__(
        self,
        model: str,
        fields: Callable[[], Mapping[str, msgspec.Raw | bytes]],
        *,
        lora: str = "",
        cache_salt: str = "",
    ) -> None:
        self.partition = Partition(model, lora, cache_salt)
        self._fields = fields
        self._canonical: bytes | tuple[int, ...] | None = None
        self._kept: tuple[bytes, tuple[str, ...]] | None = None
        self.tokens: tuple[int, ...] | None = None

    @classmethod
    def of_text(cls, model: str, text: str, *, lora: str = "", cache_salt: str = "") -> PromptKey:
        """Key of a plain completion prompt, for workloads that have no body."""
        return cls(model, lambda: {"prompt": msgspec.json.encode(text)}, lora=lora, cache_salt=cache_salt)

    @classmethod
    def of_canonical(cls, model: str, canonical: Callable[[], bytes | tuple[int, ...]]) -> PromptKey:
        """Key of a prompt whose canonical form is known, for studies of millions of them. It is asked for at
        most once, when the key is first needed."""
        key = _MadeKey(model, _forgotten)
        key.make = canonical
        return key

    @property
    def canonical(self) -> bytes | tuple[int, ...]:
        """Typed segments for text, the token ids themselves for a token-id prompt. Built once, on demand."""
        if self._canonical is None:
            fields = self._fields()
            tokens = token_ids(fields.get("prompt"))
            self._canonical = canonical_text(fields) if tokens is None else tokens
        return self._canonical

    def fields(self) -> Mapping[str, msgspec.Raw | bytes]:
        """Raw JSON of what shapes the prompt, by name: for whoever renders it as an engine does."""
        return self._fields()

    @property
    def cached_by(self) -> bytes | tuple[int, ...]:
        """What a prefix index goes by: token ids where they are known, else the canonical form."""
        return self.canonical if self.tokens is None else self.tokens

    @property
    def digest(self) -> str:
        """32 hex digits that stand for partition and prompt together."""
        chain = blake2b(self._seed(), digest_size=_DIGEST_BYTES)
        chain.update(_as_bytes(self.canonical))
        return chain.hexdigest()

    def forget(self, salt: bytes | None = None) -> None:
        """Lets go of the prompt, which a long stream would otherwise hold for as long as it runs.

        Args:
            salt: keep the blocks of this salt; None keeps nothing.
        """
        if salt is not None and self._kept is None:
            self._kept = (salt, self.blocks(salt))
        self._fields, self._canonical, self.tokens = _forgotten, None, None

    def blocks(self, salt: bytes, size: int = BLOCK_CHARACTERS) -> tuple[str, ...]:
        """Chained salted hashes (16 hex digits) of blocks of `size` characters; the last may be shorter.

        Equal hashes at one place mean equal partitions and equal text up to there. A token-id prompt is cut
        every `size / 4` tokens, so that a block stands for about as much prompt as one of text.

        Args:
            salt: secret of the log's owner, at most 64 bytes; without it nobody can test a guessed prompt.
        """
        if self._kept is not None and self._kept[0] == salt and size == BLOCK_CHARACTERS:
            return self._kept[1]
        canonical = self.canonical
        parent = self._seed()
        hashes: list[str] = []
        for block in _cut(canonical, size):
            parent = blake2b(parent + block, digest_size=_BLOCK_HASH_BYTES, key=salt).digest()
            hashes.append(parent.hex())
        return tuple(hashes)

    def _seed(self) -> bytes:
        kind = b"text" if isinstance(self.canonical, bytes) else b"tokens"
        return b"\xff".join([kind, *(part.encode("utf-8", "surrogatepass") for part in self.partition), b""])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PromptKey):
            return NotImplemented
        return self.partition == other.partition and self.canonical == other.canonical

    def __hash__(self) -> int:
        return hash((self.partition, self.canonical))

    def __repr__(self) -> str:
        built = "not built" if self._canonical is None else f"{len(self._canonical)} long"
        return f"<PromptKey {self.partition.model} [{built}]>"


class _MadeKey(PromptKey):
    """A key that is made in one piece."""

    __slots__ = ("make",)

    make: Callable[[], bytes | tuple[int, ...]]

    @property
    def canonical(self) -> bytes | tuple[int, ...]:
        if self._canonical is None:
            self._canonical = self.make()
        return self._canonical


def _forgotten() -> Mapping[str, msgspec.Raw | bytes]:
    raise InternalError("This prompt was let go of when its answer began.")


def token_ids(prompt: msgspec.Raw | bytes | None) -> tuple[int, ...] | None:
    """The first prompt's token ids, None when the prompt is text (or nothing that could be ids)."""
    if prompt is None:
        return None
    raw = bytes(prompt).lstrip()
    if not raw.startswith(b"[") or too_many_values(raw, MAX_TOKEN_IDS):
        return None
    try:
        if raw[1:].lstrip().startswith(b"["):
            raw = bytes(_TOKEN_LISTS.decode(raw)[0])
        ids = _TOKEN_LIST.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return None
    return ids or None


def _as_bytes(canonical: bytes | tuple[int, ...]) -> bytes:
    if isinstance(canonical, bytes):
        return canonical
    return b",".join(b"%d" % token for token in canonical)


def _cut(canonical: bytes | tuple[int, ...], size: int) -> list[bytes]:
    if isinstance(canonical, bytes):
        # surrogateescape keeps the 0xFF borders as one character each and restores them exactly
        text = canonical.decode("utf-8", "surrogateescape")
        return [text[i : i + size].encode("utf-8", "surrogateescape") for i in range(0, len(text), size)]
    step = max(1, size // _CHARACTERS_PER_TOKEN)
    return [_as_bytes(canonical[i : i + step]) for i in range(0, len(canonical), step)]
