"""Workers, as they are written down.

Separate from the pools because workers come from three places in the same words: the configuration, flags and
workers files.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Final, Self
from urllib.parse import SplitResult, urlsplit

import yaml
from pydantic import Field, TypeAdapter, ValidationError, ValidationInfo, field_validator, model_validator

from router.core.worker import Role
from router.kv_events.source import EventSource
from router.settings.ranks import DpSize, RankOffset, split_rank, with_rank
from router.settings.section import Key, Section

_DNS: Final = "dns+"
_SCHEMES: Final = ("http", "https")
_URL_LINE: Final = re.compile(r"(dns\+)?https?://\S+")
_NAME: Final = re.compile(r"[!-~]{1,200}")
_REVISION: Final = re.compile(r"[!-~]{1,64}")
_COMMENT: Final = re.compile(r"(^|\s)#.*")

Slots = Annotated[int, Field(ge=1, le=100_000)]
BootstrapPort = Annotated[int, Field(ge=1, le=65535)]


class WorkerSettings(Section):
    """One engine; written as its URL, or as a mapping with `url`."""

    url: str
    """`http://host:port` or `https://…`, with the path before `/v1` if there is one. `dns+http://name:port`
    makes one worker of each address that the name resolves to. `http://host:port@3` is the data-parallel rank
    3 of the engine there."""
    name: str = Field(default="", validate_default=True)
    """Its name in logs, metrics, headers and the admin API. Default: host and port, the path if any, and the
    rank if any: `host:port@3`."""
    model: str | None = None
    """Model that it serves; null learns it from `/v1/models`."""
    role: Role | None = None
    """null: the role of its pool. In a decode pool, `both` is a worker that may serve whole requests, too."""
    revision: str | None = None
    """Label of what it runs, such as a deployment's; only workers of one revision hand KV to each other, and
    `pointsman drain --revision` speaks of it. Engine version and model root are told apart without it."""
    capacity: Annotated[float, Field(gt=0, le=1000)] | None = None
    """Speed relative to the other workers of the pool; null: all alike."""
    slots: Slots | None = None
    """Sequences that it runs at once (`max_num_seqs`); null: as its pool says."""
    barrier_group: str | None = None
    """Name of the data-parallel group that it steps in lock-step with; null: as its pool says, and otherwise
    the ranks of one URL are a group. `none`: it waits for nobody."""
    dp_size: DpSize | None = None
    """Data-parallel ranks of the engine, each of which becomes a worker `NAME@RANK` with slots and KV of its
    own; null: as its pool says. With a rank in the URL it is that rank alone."""
    dp_rank_offset: RankOffset = 0
    """First rank of this address in the numbers that the engines use, where one engine has several addresses
    (vLLM's hybrid load balancing: `--data-parallel-start-rank`). In the URL ranks begin with 0."""
    may_prefill: bool | None = None
    """Of a decode pool: it may serve whole requests, those that are not split; null: as its pool says."""
    bootstrap_port: BootstrapPort | None = None
    """Of a prefill pool: port of its bootstrap server; null: as its pool says."""
    kv_events_endpoint: str | None = None
    """ZMQ address at which it publishes what it holds, such as `tcp://host:5557`; with `*` for the host the
    router listens there and the engine connects. null: where the engine itself says."""
    kv_events_replay_endpoint: str | None = None
    """ZMQ address at which it answers for events that were missed; null: nowhere, and a gap costs trust."""
    kv_events_topic: str = ""
    """Only events whose topic begins with this."""
    api_key: Key | None = None
    """Key sent to this worker; null: auth.api_key."""

    @field_validator("url")
    @classmethod
    def _reachable(cls, value: str) -> str:
        parse_worker_url(value)
        return with_rank(*split_rank(value))

    @field_validator("name")
    @classmethod
    def _name_by_address(cls, value: str, info: ValidationInfo) -> str:
        if value and _NAME.fullmatch(value) is None:
            raise ValueError(
                "it must be 1 to 200 visible ASCII characters, since it stands in headers and paths"
            )
        if value or "url" not in info.data:
            return value
        url, rank = split_rank(info.data["url"])
        parts = urlsplit(url.removeprefix(_DNS))
        return with_rank(parts.netloc + parts.path, rank)

    @field_validator("revision")
    @classmethod
    def _a_label(cls, value: str | None) -> str | None:
        if value is not None and _REVISION.fullmatch(value) is None:
            raise ValueError("it must be 1 to 64 visible ASCII characters")
        return value

    @model_validator(mode="after")
    def _can_be_followed(self) -> Self:
        if self.kv_events_endpoint is None and self.kv_events_replay_endpoint is not None:
            raise ValueError("kv_events_replay_endpoint is of no use without kv_events_endpoint")
        self.event_source  # noqa: B018 - asked for the ValueError of an address that is none
        return self

    @model_validator(mode="before")
    @classmethod
    def _url_alone(cls, value: Any) -> Any:
        """A URL is enough."""
        return {"url": value} if isinstance(value, str) else value

    @property
    def event_source(self) -> EventSource | None:
        """Where it publishes, None when nobody wrote that down. Raises ValueError for what is no address."""
        if self.kv_events_endpoint is None:
            return None
        replay = self.kv_events_replay_endpoint
        return EventSource.parse(self.kv_events_endpoint, replay, topic=self.kv_events_topic)

    @property
    def resolves(self) -> bool:
        """Whether its name stands for several workers, one for each address."""
        return self.url.startswith(_DNS)

    @property
    def origin_url(self) -> str:
        """The URL without `dns+` and without a rank: what the engine listens at."""
        return split_rank(self.url)[0].removeprefix(_DNS)

    @property
    def rank(self) -> int | None:
        """The data-parallel rank that it is, from 0 at its address; None when it is all of an engine."""
        return split_rank(self.url)[1]

    def ranks(self, dp_size: int) -> tuple[WorkerSettings, ...]:
        """One worker for each of so many ranks; itself where there is one rank, or it is one already."""
        if self.rank is not None or dp_size == 1:
            return (self,)
        return tuple(
            self.model_copy(
                update={
                    "url": with_rank(self.url, rank),
                    "name": with_rank(self.name, rank),
                    "dp_size": dp_size,
                }
            )
            for rank in range(dp_size)
        )


_WORKERS: Final = TypeAdapter(tuple[WorkerSettings, ...])


def parse_worker_url(url: str) -> SplitResult:
    """The parts of a worker's URL, without `dns+` and rank.

    Raises:
        ValueError: it is no http(s) URL of a host, or holds what an origin may not.
    """
    try:
        address, _ = split_rank(url)
        parts = urlsplit(address.removeprefix(_DNS))
        port = parts.port
    except ValueError as error:
        raise ValueError(f"it is no URL ({error}); expected http://host:port") from error
    if parts.scheme not in _SCHEMES or not parts.hostname or port == 0:
        raise ValueError("it must be a URL such as http://host:port")
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError("a worker's URL holds no user, query or fragment; keys belong into api_key")
    if "@" in parts.path:
        raise ValueError("a rank is a number after the whole URL, as in http://host:port@3")
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
    except RecursionError:
        raise ValueError("it is nested too deeply to be read") from None
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
        ValueError: two workers share a name or a URL, or one is a rank of an engine that another is whole.
    """
    for what in ("url", "name"):
        seen: set[str] = set()
        for worker in workers:
            value = getattr(worker, what)
            if value in seen:
                raise ValueError(f"two workers have the {what} {value}")
            seen.add(value)
    whole = {worker.url for worker in workers if worker.rank is None}
    for worker in workers:
        if worker.rank is not None and worker.origin_url in whole:
            raise ValueError(f"{worker.url} is a rank of {worker.origin_url}, which is a worker, too")
    return workers
