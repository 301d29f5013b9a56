"""The reference of all settings, made from the settings themselves.

Separate from `check`, which prints it. `docs/configuration.md` is this text; a test fails when it is stale.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Final

from router.cli.flags import FLAGS, REFUSED, flags_of
from router.settings import Settings
from router.settings.configuration import ENVIRONMENT_DELIMITER, ENVIRONMENT_PREFIX
from router.settings.keys import Key, all_keys, section_at
from router.settings.refusals import ABSENT

_INTRODUCTION: Final = """\
# Configuration

This page is made from the settings by `pointsman check --print-reference`; edit those, not this page.

A setting comes from the first of these that has it: a flag, the environment, the file named by
`--config`, its default. No file is read that was not named. A name in the environment is `POINTSMAN_` and
the key, with `__` between the levels; case and dashes do not matter there. Lists may be written `a,b`, or
as JSON. An empty variable is not set, and `null` means null. Unknown keys, flags and variables are refused,
and so is what would have no effect: the router does not start, and says why. `pointsman check` says the
same without starting.

Sizes may carry a unit (`64 MiB`). Times are in seconds. Relative paths start where the router was started.
Flags for a pool speak of the one pool that the file has, or of a pool called `default` when it has none.
Flags for prefill and decode (`--prefill`, `--decode`, `--kv-connector`, `--pd-…`) speak of the one prefill
and the one decode pool that the file has, or of pools called `prefill` and `decode`; then `--policy` and
`--model` are those of both, and `--slots` those of decode workers. `*` stands for the name of a
pool, `[*]` for a place in a list.
"""


def reference() -> str:
    """The whole page, as Markdown."""
    parts = [_INTRODUCTION]
    for section, keys in groupby(all_keys(Settings), key=lambda key: key.path.partition(".")[0]):
        parts.append("\n".join(_section(section, list(keys))))
    parts.append("\n".join(_notices()))
    parts.append("\n".join(_refusals()))
    return "\n".join(parts)


def _section(name: str, keys: list[Key]) -> Iterator[str]:
    model = section_at(Settings, (name,))
    yield f"## {name}"
    yield ""
    if model is not None and model.__doc__:
        yield " ".join(model.__doc__.split())
        yield ""
    yield "| key | default | allowed | flag | environment | meaning |"
    yield "|---|---|---|---|---|---|"
    for key in keys:
        yield _row(key)
    yield ""


def _row(key: Key) -> str:
    flags = ", ".join(f"`{name}`" for flag in flags_of(key.path) for name in flag.names)
    variable = _variable(key.path)
    missing = "required" if key.field.is_required() else "null" if key.nullable else "none"
    cells = (
        f"`{key.path}`",
        f"`{key.default}`" if key.default else missing,
        key.allowed,
        flags,
        f"`{variable}`" if variable else "",
        key.meaning,
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _variable(path: str) -> str:
    """The name in the environment; "" for a place in a list, which has none."""
    if "[*]" in path:
        return ""
    words = path.upper().replace("*", "<POOL>").split(".")
    return ENVIRONMENT_PREFIX + ENVIRONMENT_DELIMITER.join(words)


def _notices() -> Iterator[str]:
    yield "## Flags that mean something else elsewhere"
    yield ""
    for flag in FLAGS:
        if flag.notice:
            yield f"- {flag.notice.replace(flag.name, f'`{flag.name}`')}"
    yield ""


def _refusals() -> Iterator[str]:
    yield "## Refused"
    yield ""
    yield "Keys and flags that users of other routers know, and why they are not taken here."
    yield ""
    yield "| key or flag | reason |"
    yield "|---|---|"
    names: dict[str, list[str]] = {}
    for name, reason in (*REFUSED.items(), *ABSENT.items()):
        names.setdefault(reason, []).append(f"`{name}`")
    for reason, refused in names.items():
        yield f"| {', '.join(refused)} | {reason} |"
