"""Pools and their workers, as they are written down.

Separate because workers come from three places in the same words: the configuration, flags and workers
files.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import SplitResult, urlsplit

import yaml
from pydantic import (
    Field,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from router.core.worker import Role
from router.policies import POLICIES, Shape
from router.settings.refusals import closest
from router.settings.section import FilePath, Key, Section

DEFAULT_POOL: Final = "default"
"""Name of the pool that flags make, and of the one that exists when none is configured."""
_DNS: Final = "dns+"
_SCHEMES: Final = ("http", "https")
_URL_LINE: Final = re.compile(r"(dns\+)?https?://\S+")
_NAME: Final = re.compile(r"[!-~]{1,200}")
_COMMENT: Final = re.compile(r"(^|\s)#.*")
_SPLIT_IS_ABSENT: Final = "prefill/decode disaggregation is not in this version; the only role is both"

Slots = Annotated[int, Field(ge=1, le=100_000)]
Binding = Literal["auto", "early", "late"]


class WorkerSettings(Section):
    """One engine; written as its URL, or as a mapping with `url`."""

    url: str
    """`http://host:port` or `https://…`, with the path before `/v1` if there is one. `dns+http://name:port`
    makes one worker of each address that the name resolves to."""
    name: str = Field(default="", validate_default=True)
    """Its name in logs, metrics, headers and the admin API. Default: host and port, and the path if any."""
    model: str | None = None
    """Model that it serves; null learns it from `/v1/models`."""
    role: Role | None = None
    """null: the role of its pool."""
    capacity: Annotated[float, Field(gt=0, le=1000)] | None = None
    """Speed relative to the other workers of the pool; null: all alike."""
    slots: Slots | None = None
    """Sequences that it runs at once (`max_num_seqs`); null: as its pool says."""
    barrier_group: str | None = None
    """Name of the data-parallel group that it steps in lock-step with."""
    api_key: Key | None = None
    """Key sent to this worker; null: auth.api_key."""

    @field_validator("url")
    @classmethod
    def _reachable(cls, value: str) -> str:
        parse_worker_url(value)
        return value.rstrip("/")

    @field_validator("name")
    @classmethod
    def _name_by_address(cls, value: str, info: ValidationInfo) -> str:
        if value and _NAME.fullmatch(value) is None:
            raise ValueError(
                "it must be 1 to 200 visible ASCII characters, since it stands in headers and paths"
            )
        if value or "url" not in info.data:
            return value
        url: str = info.data["url"]
        parts = urlsplit(url.removeprefix(_DNS))
        return parts.netloc + parts.path

    @field_validator("role")
    @classmethod
    def _not_split(cls, value: Role | None) -> Role | None:
        return _refuse_split(value)

    @model_validator(mode="before")
    @classmethod
    def _url_alone(cls, value: Any) -> Any:
        """A URL is enough."""
        return {"url": value} if isinstance(value, str) else value

    @property
    def resolves(self) -> bool:
        """Whether its name stands for several workers, one for each address."""
        return self.url.startswith(_DNS)

    @property
    def origin_url(self) -> str:
        """The URL without `dns+`."""
        return self.url.removeprefix(_DNS)


class PoolSettings(Section):
    """Workers that serve one model, and how requests are placed on them."""

    model: str | None = None
    """Model that the pool serves; null learns the models from its workers."""
    role: Role = Role.BOTH
    """What its workers do."""
    policy: str = Field(default="least_requests", json_schema_extra={"choices": list(POLICIES)})
    """How a worker is chosen; `docs/policies.md` describes each policy."""
    policy_params: dict[str, Any] = Field(default_factory=dict)
    """Parameters of the policy, by name."""
    slots: Slots | None = None
    """Sequences that each worker runs at once (`max_num_seqs`); no engine tells it. Late binding needs it."""
    barrier_group: str | None = None
    """Name of the data-parallel group that all its workers step in lock-step in."""
    binding: Binding = "auto"
    """`early` places a request as it comes; `late` keeps it until a worker has a free slot; `auto` is late
    when the policy asks for it or a barrier group is declared."""
    workers: tuple[WorkerSettings, ...] = ()
    """Its workers."""
    workers_file: FilePath | None = None
    """File with more workers, watched while the router runs: a YAML or JSON list of what `workers` holds, or
    URLs, one a line."""

    @field_validator("role")
    @classmethod
    def _not_split(cls, value: Role) -> Role | None:
        return _refuse_split(value)

    @field_validator("policy")
    @classmethod
    def _exists(cls, value: str) -> str:
        if value not in POLICIES:
            near = closest(value, POLICIES)
            meant = f"; did you mean {near}?" if near else ""
            raise ValueError(f"it must be one of {', '.join(POLICIES)}{meant}")
        return value

    @field_validator("policy_params")
    @classmethod
    def _fit_the_policy(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        params = {name: _as_number(item) for name, item in value.items()}
        if "policy" in info.data:
            POLICIES[info.data["policy"]].check(params)
        return params

    @field_validator("workers", mode="before")
    @classmethod
    def _split_words(cls, value: Any) -> Any:
        return re.split(r"[,\s]+", value.strip()) if isinstance(value, str) else value or ()

    @field_validator("workers")
    @classmethod
    def _told_apart(
        cls, value: tuple[WorkerSettings, ...], info: ValidationInfo
    ) -> tuple[WorkerSettings, ...]:
        return refuse_twins(value)

    @property
    def late_binding(self) -> bool:
        """Whether requests wait in the router until a worker has a free slot."""
        if self.binding != "auto":
            return self.binding == "late"
        groups = (self.barrier_group, *(worker.barrier_group for worker in self.workers))
        return any(groups) or POLICIES[self.policy].shape is Shape.BATCH

    def slots_of(self, worker: WorkerSettings) -> int | None:
        """Sequences that this worker runs at once, None when nobody said."""
        return worker.slots or self.slots

    def barrier_group_of(self, worker: WorkerSettings) -> str | None:
        """Group whose steps this worker shares, None outside of any."""
        return worker.barrier_group or self.barrier_group


_WORKERS: Final = TypeAdapter(tuple[WorkerSettings, ...])


def parse_worker_url(url: str) -> SplitResult:
    """The parts of a worker's URL, without `dns+`.

    Raises:
        ValueError: it is no http(s) URL of a host, or holds what an origin may not.
    """
    try:
        parts = urlsplit(url.removeprefix(_DNS))
        port = parts.port
    except ValueError as error:
        raise ValueError(f"it is no URL ({error}); expected http://host:port") from error
    if parts.scheme not in _SCHEMES or not parts.hostname or port == 0:
        raise ValueError("it must be a URL such as http://host:port")
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError("a worker's URL holds no user, query or fragment; keys belong into api_key")
    if "@" in parts.path or re.search(r"@\d+$", url):
        raise ValueError("ranks of a worker (url@rank) are not in this version")
    if parts.path.rstrip("/").endswith("/v1"):
        raise ValueError("a worker's URL ends before /v1, which the router adds itself")
    return parts


def parse_workers(text: str) -> tuple[WorkerSettings, ...]:
    """The workers of a workers file.

    Args:
        text: a YAML or JSON list of URLs and mappings, a mapping with one such list under `workers`, or URLs
            one a line. Empty text is no worker.

    Raises:
        ValueError: what is wrong with it, in one sentence.
    """
    try:
        content = _lines_of_urls(text) or yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"it is no YAML: {' '.join(str(error).split())}") from error
    if isinstance(content, dict) and set(content) == {"workers"}:
        content = content["workers"]
    if not isinstance(content, list | None):
        raise ValueError(  # noqa: TRY004 - callers catch one kind: the file is wrong
            "it must be a list of workers: URLs, or mappings with url"
        )
    try:
        return refuse_twins(_WORKERS.validate_python(content or ()))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
        raise ValueError(f"workers{where}: {first['msg'].removeprefix('Value error, ')}") from error


def _lines_of_urls(text: str) -> list[str] | None:
    """The URLs of a file that holds one a line and nothing else but comments; None for any other file."""
    lines = [_COMMENT.sub("", line).strip() for line in text.splitlines()]
    urls = [line for line in lines if line]
    return urls if all(_URL_LINE.fullmatch(url) for url in urls) else None


def read_workers_file(path: Path) -> tuple[WorkerSettings, ...]:
    """The workers of a file, for the start and after each change.

    Raises:
        ValueError: it cannot be read or is wrong; the sentence names the file.
    """
    try:
        return parse_workers(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"the workers file {path} cannot be read: {error}") from error
    except ValueError as error:
        raise ValueError(f"the workers file {path} is refused: {error}") from error


def refuse_twins(workers: tuple[WorkerSettings, ...]) -> tuple[WorkerSettings, ...]:
    """The same workers, all of different names and URLs.

    Raises:
        ValueError: two workers share a name or a URL.
    """
    for what in ("url", "name"):
        seen: set[str] = set()
        for worker in workers:
            value = getattr(worker, what)
            if value in seen:
                raise ValueError(f"two workers have the {what} {value}")
            seen.add(value)
    return workers


def _as_number(value: Any) -> Any:
    """The number that a text is, for parameters from the environment; anything else as it was."""
    if not isinstance(value, str):
        return value
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value


def _refuse_split(role: Role | None) -> Role | None:
    if role not in (None, Role.BOTH):
        raise ValueError(_SPLIT_IS_ABSENT)
    return role
