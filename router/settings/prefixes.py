"""What is known of workers' prefix caches, as it is written down: the index, and the engines' own events.

Separate from the policies, several of which ask the same index.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from router.core.prefix_settings import PrefixSettings
from router.kv_events.settings import KvEventsSettings
from router.settings.section import Bytes, Seconds, Section

Follow = Literal["auto", "configured", "never"]


class PrefixIndexSettings(Section):
    """What each worker is believed to hold. Kept by pools whose policy asks for it."""

    max_bytes: Annotated[Bytes, Field(ge=2**20)] = 256 * 2**20
    """Memory of the index of one pool; what was used longest ago is forgotten first."""
    ttl_s: Seconds = 1_800.0
    """A prefix that nobody asked for in so long is held no more."""
    capacity_share: Annotated[float, Field(gt=0, le=1)] = 0.8
    """Share of a worker's KV capacity that cached prefixes may have; the rest is output and fragments."""
    block_tokens: Annotated[int, Field(ge=1, le=1024)] = 16
    """Tokens of one block of the index. Best the engines' own block size, or a divisor of it."""

    @property
    def core(self) -> PrefixSettings:
        """The same for the index."""
        return PrefixSettings(
            max_bytes=self.max_bytes,
            ttl_s=self.ttl_s,
            capacity_share=self.capacity_share,
            block_tokens=self.block_tokens,
        )


class TokenizerSettings(Section):
    """Prompts of pools with a `tokenizer` are tokenized; beyond a bound they are known by their text."""

    max_bytes: Bytes = 256 * 1024
    """Text of a prompt at most."""
    threads: Annotated[int, Field(ge=1, le=64)] = 2
    """Prompts that are tokenized at once."""
    max_waiting: Annotated[int, Field(ge=1, le=10_000)] = 64
    """Prompts that are tokenized or wait for that."""
    timeout_s: Seconds = 1.0
    """A request waits for its tokens at most."""


class KvEventSettings(Section):
    """The events by which engines tell what they hold. They need the extra `kv-events` (pyzmq)."""

    follow: Follow = "auto"
    """`configured` follows workers that have a `kv_events_endpoint`; `auto` also those that say themselves
    where they publish, at vLLM's `/kv_event_sources` or SGLang's `/server_info`; `never` follows nobody."""
    quiet_s: Seconds = 30.0
    """After so long without an event, the engine's replay is asked whether there was really none."""
    answer_s: Seconds = 2.0
    """The first answer of a replay comes within."""
    replay_s: Seconds = 60.0
    """A whole replay is done within."""
    resync_min_s: Seconds = 30.0
    """Between two attempts to get back a record that is not whole; each waits twice as long as the one before
    …"""
    resync_max_s: Seconds = 600.0
    """… up to this."""
    look_s: Seconds = 60.0
    """Between two looks at where a worker publishes, while it does not say."""
    queue_messages: Annotated[int, Field(ge=1, le=1_000_000)] = 1_000
    """Batches of one worker that wait in the router; what is more waits in the engine, and is asked for again
    if that cannot keep it."""
    max_message_bytes: Annotated[Bytes, Field(le=2**30)] = 4 * 2**20
    """A larger batch is dropped unread, and what is known of its worker's blocks begins anew. A step of
    64,000 tokens takes some 0.4 MB."""

    @field_validator("resync_max_s")
    @classmethod
    def _not_below_min(cls, value: float, info: ValidationInfo) -> float:
        least = info.data.get("resync_min_s", 0.0)
        if value < least:
            raise ValueError(f"it must not be below kv_events.resync_min_s ({least:g})")
        return value

    @property
    def core(self) -> KvEventsSettings:
        """The same for the listeners."""
        return KvEventsSettings(
            quiet_s=self.quiet_s,
            answer_s=self.answer_s,
            replay_s=self.replay_s,
            resync_min_s=self.resync_min_s,
            resync_max_s=self.resync_max_s,
            look_s=self.look_s,
            queue_messages=self.queue_messages,
            max_message_bytes=self.max_message_bytes,
        )
