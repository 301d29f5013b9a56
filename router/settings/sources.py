"""Where settings come from, and which source wins: flags, then environment, then the file, then defaults.

The only reader of the configuration file and of the environment.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import ValidationError
from pydantic_settings import EnvSettingsSource

from router.settings.calibration_file import CalibrationFileError, read_calibration
from router.settings.configuration import ENVIRONMENT_DELIMITER, ENVIRONMENT_PREFIX, Settings
from router.settings.placing import Given, place
from router.settings.pools import PoolSettings
from router.settings.refusals import ONE_PROCESS, Loc, SettingsError, sentences
from router.settings.workers import read_workers_file

Tree = dict[str, Any]

_SERVICE_LINK: Final = re.compile(
    r".*_?(service_host|service_port(_[a-z0-9_]+)?|port_\d+_(tcp|udp|sctp)(_(proto|port|addr))?)"
)
_NULL: Final = "null"
_PROCESSES: Final = "web_concurrency"


def load(config: Path | None = None, flags: Sequence[Given] = ()) -> Settings:
    """All settings, from the flags, the environment, the file that was named, and the defaults.

    Args:
        config: the YAML file; None reads no file, wherever the router is started.
        flags: what the command line gave.

    Raises:
        SettingsError: with a sentence for each thing that is wrong.
    """
    file = read_yaml(config) if config is not None else {}
    environment = _read_environment(file)
    below = _overlay(file, environment)
    placed = place(flags, below)
    flag_tree: Tree = {}
    for each in placed:
        _put(flag_tree, each.loc, each.value, each.flag)

    def origin(loc: Loc) -> str:
        if _holds(flag_tree, loc):
            return next((each.flag for each in reversed(placed) if loc[: len(each.loc)] == each.loc), "")
        if _holds(environment, loc):
            return f"environment {_environment_name(loc)}"
        return str(config) if _holds(file, loc) else ""

    try:
        settings = Settings.model_validate(_overlay(below, flag_tree))
    except ValidationError as error:
        raise SettingsError(sentences(error, Settings, origin)) from None  # its text may hold secrets
    problems = list(_wrong_files(settings))
    if problems:
        raise SettingsError(problems)
    return settings


def read_yaml(path: Path) -> Tree:
    """The mapping in a YAML file; an empty file is an empty one.

    Raises:
        SettingsError: no such file, no YAML, a key twice, or no mapping.
    """
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_NoTwins)
    except FileNotFoundError:
        raise SettingsError([f"the configuration file {path} does not exist"]) from None
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError([f"the configuration file {path} cannot be read: {error}"]) from error
    except yaml.YAMLError as error:
        raise SettingsError(
            [f"the configuration file {path} is no YAML: {' '.join(str(error).split())}"]
        ) from error
    except RecursionError:
        raise SettingsError([f"the configuration file {path} is nested too deeply to be read"]) from None
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise SettingsError([f"the configuration file {path} must hold a mapping of sections"])
    return content


class _NoTwins(yaml.SafeLoader):
    """A SafeLoader that refuses a key that stands twice in one mapping: one of the two would be ignored."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = key_node.value
            if key in seen and key != "<<":
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key} stands twice in one mapping", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def _read_environment(file: Tree) -> Tree:
    """The variables that begin with our prefix, as a tree; names are matched to those of the file."""
    variables = EnvSettingsSource(Settings).env_vars
    _refuse_processes(variables)
    prefix = ENVIRONMENT_PREFIX.lower()
    tree: Tree = {}
    for name in sorted(variables):  # a section as JSON comes before its own keys, which override it
        value = variables[name]
        rest = name.removeprefix(prefix)
        if rest == name or not rest or _is_service_link(rest, value):
            continue
        loc = _spelled_as_in(file, rest.split(ENVIRONMENT_DELIMITER))
        _put(tree, loc, _decode(value, name), f"environment {name.upper()}")
    return tree


def _refuse_processes(variables: Mapping[str, str | None]) -> None:
    count = variables.get(_PROCESSES)
    if count not in (None, "1"):
        raise SettingsError([f"WEB_CONCURRENCY is {count}, and must be 1 or unset: {ONE_PROCESS}"])


def _is_service_link(rest: str, value: str | None) -> bool:
    """Kubernetes puts such names into every container beside a Service called pointsman."""
    if ENVIRONMENT_DELIMITER in rest:
        return False
    is_link = rest == "port" or rest.endswith("_port")
    return bool(_SERVICE_LINK.fullmatch(rest)) or (is_link and "://" in (value or ""))


def _spelled_as_in(file: Tree, words: list[str]) -> tuple[str, ...]:
    """Names as the file has them: variables know neither case nor dashes, names of pools do."""
    loc: list[str] = []
    node: Any = file
    for word in words:
        names = node if isinstance(node, dict) else {}
        name = next(
            (name for name in names if str(name).lower().replace("-", "_") == word.replace("-", "_")), word
        )
        loc.append(name)
        node = names.get(name)
    return tuple(loc)


def _environment_name(loc: Loc) -> str:
    words = [str(part) for part in loc if isinstance(part, str)]
    return (ENVIRONMENT_PREFIX + ENVIRONMENT_DELIMITER.join(words)).upper().replace("-", "_")


def _decode(value: str | None, name: str) -> Any:
    """Lists and mappings are JSON; everything else is text, which the section reads as what it needs."""
    if value is None or value == _NULL:
        return None
    if value.strip()[:1] not in ("{", "["):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise SettingsError([f"environment {name.upper()} begins like JSON but is none: {error}"]) from error


def _put(tree: Tree, loc: Loc, value: Any, name: str) -> None:
    """Sets one value; what is on the way must be mappings."""
    for part in loc[:-1]:
        tree = tree.setdefault(str(part), {})
        if not isinstance(tree, dict):
            raise SettingsError([f"{name} sets a part of {part}, which is already given as one value"])
    tree[str(loc[-1])] = value


def _overlay(lower: Tree, upper: Tree) -> Tree:
    """Both trees; where both say something, the upper one is right. Lists are replaced, not joined."""
    merged = dict(lower)
    for key, value in upper.items():
        below = merged.get(key)
        merged[key] = _overlay(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def _holds(tree: Any, loc: Loc) -> bool:
    """Whether the tree says something at this place: a value in it, or a list around it."""
    for part in loc:
        if not isinstance(tree, dict):
            return True
        if part not in tree:
            return False
        tree = tree[part]
    return bool(loc)


def _wrong_files(settings: Settings) -> Iterator[str]:
    """Files that are wrong now would be wrong at the first request."""
    for name, pool in settings.pools.items():
        yield from _wrong_workers(name, pool)
    if settings.calibration.file is not None:
        try:
            read_calibration(settings.calibration.file)
        except CalibrationFileError as error:
            yield f"calibration.file: {error}"
    folder = settings.state.dir
    if folder is not None and folder.exists() and not folder.is_dir():
        yield f"state.dir is {folder}, which is no folder"
    yield from _wrong_logs(settings)


def _wrong_logs(settings: Settings) -> Iterator[str]:
    log = settings.request_log
    files = {
        "request_log.path": log.path,
        "request_log.salt_file": log.salt_file,
        "decision_log.path": settings.decision_log.path,
    }
    names: dict[Path, str] = {}
    for name, path in files.items():
        if path is None:
            continue
        if not path.absolute().parent.is_dir():
            yield f"{name} is {path}, but the folder {path.absolute().parent} does not exist"
        elif path.is_dir():
            yield f"{name} is {path}, which is a folder"
        other = names.setdefault(path.resolve(), name)
        if other != name:
            yield f"{other} and {name} are both {path}; each needs a file of its own"


def _wrong_workers(name: str, pool: PoolSettings) -> Iterator[str]:
    if pool.workers_file is None:
        return
    try:
        workers = read_workers_file(pool.workers_file)
    except ValueError as error:
        yield f"pools.{name}.workers_file: {error}"
        return
    for worker in workers:
        misfit = pool.misfit(worker)
        if misfit is not None:
            yield f"pools.{name}.workers_file: worker {worker.name} cannot be in this pool: {misfit}"
