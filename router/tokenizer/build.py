"""From the settings to the tokenizers of a router."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

from router.settings.configuration import Settings
from router.settings.refusals import SettingsError
from router.tokenizer.tokenizer import Tokenizer
from router.tokenizer.tokenizers import TokenizerBounds, Tokenizers, Told


def build_tokenizers(
    settings: Settings,
    threads: Executor | None,
    now: Callable[[], float],
    wall: Callable[[], float],
    told: Told,
) -> Tokenizers | None:
    """The tokenizers that pools name; None when no pool names one.

    Args:
        threads: where prompts are tokenized; None makes some.

    Raises:
        SettingsError: the files of one cannot be read.
    """
    paths = {name: pool.tokenizer for name, pool in settings.pools.items() if pool.tokenizer is not None}
    if not paths:
        return None

    def today() -> datetime:
        return datetime.fromtimestamp(wall(), tz=UTC).astimezone().replace(tzinfo=None)

    loaded: dict[Path, Tokenizer] = {}
    problems = []
    for name, path in paths.items():
        try:
            if path not in loaded:
                loaded[path] = Tokenizer(path, today)
        except ValueError as error:
            problems.append(f"pools.{name}.tokenizer: {error}")
    if problems:
        raise SettingsError(problems)
    section = settings.tokenizers
    bounds = TokenizerBounds(
        max_bytes=section.max_bytes, max_waiting=section.max_waiting, timeout_s=section.timeout_s
    )
    pool = threads or ThreadPoolExecutor(section.threads, thread_name_prefix="tokenizer")
    return Tokenizers({name: loaded[path] for name, path in paths.items()}, pool, bounds, now, told)
