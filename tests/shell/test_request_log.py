"""Laws of the request log: it never waits, loses lines only with a count, and leaves whole lines behind."""

from __future__ import annotations

import stat
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.prompt_key import PromptKey
from router.telemetry.record import (
    BLOCK_CHARACTERS,
    Candidate,
    Header,
    Phases,
    Placement,
    RequestRecord,
    read_header,
    read_records,
)
from router.telemetry.request_log import load_salt
from router.virtual.clock import run
from tests.shell.log_examples import names, opened, record

# --- records ---------------------------------------------------------------------------------------------

texts = st.text(st.characters(codec="utf-8"), max_size=12)

seconds = st.floats(0, 1e6)

costs = st.floats(allow_nan=False, allow_infinity=False)

placements = st.builds(
    Placement, worker=texts, role=texts, policy=texts, reason=texts, cost=costs,
    others=st.lists(st.builds(Candidate, worker=texts, cost=costs), max_size=3).map(tuple),
)  # fmt: skip

counts = st.none() | st.integers(0, 2**40)

records = st.builds(
    RequestRecord,
    arrival=seconds, id=texts, tenant=texts, model=texts, api=texts, stream=st.booleans(),
    prompt_tokens=counts, prompt_tokens_from=st.sampled_from([None, "engine", "ids", "estimate"]),
    max_tokens=counts, n=st.integers(1, 99), priority=st.integers(-9, 9), output_tokens=counts,
    cached_tokens=counts, blocks=st.lists(texts, max_size=3).map(tuple), affinity=st.none() | texts,
    placements=st.lists(placements, max_size=3).map(tuple),
    phases=st.builds(Phases, queued_s=st.none() | seconds, ttft_s=st.none() | seconds, total_s=seconds),
    outcome=texts, status=st.integers(100, 599), error=st.none() | texts, finish_reason=st.none() | texts,
)  # fmt: skip


@settings(deadline=None)
@given(st.lists(records, max_size=5))
def test_records_round_trip(tmp_path_factory: pytest.TempPathFactory, written: list[RequestRecord]) -> None:
    path = tmp_path_factory.mktemp("log") / "requests.jsonl"

    async def write() -> None:
        log = opened(path)
        for each in written:
            log.write(each)
        await log.aclose()

    run(write())
    assert list(read_records(path)) == written


def test_a_line_holds_no_field_that_could_hold_text() -> None:
    assert set(RequestRecord.__struct_fields__) == {
        "arrival", "id", "tenant", "model", "api", "stream", "prompt_tokens", "prompt_tokens_from",
        "max_tokens", "n", "priority", "output_tokens", "cached_tokens", "blocks", "affinity", "placements",
        "phases", "outcome", "status", "error", "finish_reason",
    }  # fmt: skip


def test_fields_of_a_later_version_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "log"
    line = msgspec.json.decode(msgspec.json.encode(record()))
    path.write_bytes(
        msgspec.json.encode(Header()) + b"\n" + msgspec.json.encode({**line, "later": 1}) + b"\n"
    )
    assert list(read_records(path)) == [record()]


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_a_torn_last_line_is_left_out(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "log"
    lines = [msgspec.json.encode(each) + b"\n" for each in (Header(), record("a"), record("b"))]
    path.write_bytes(b"".join(lines)[:-cut])
    assert names(path) == ["a"]


def test_a_broken_line_in_the_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(msgspec.json.encode(Header()) + b"\n{}\n" + msgspec.json.encode(record()) + b"\n")
    with pytest.raises(ValueError, match=r"line 2 of .* is not a record"):
        list(read_records(path))


@pytest.mark.parametrize(
    ("first", "complaint"),
    [
        (b"", "no header"),
        (b"{}\n", "no header"),
        (b"TIMESTAMP,ContextTokens\n", "no header"),
        (b'{"format": "other", "version": 1}\n', "names the format 'other'"),
        (b'{"format": "pointsman-request-log", "version": 99}\n', "version 99"),
    ],
)
def test_a_file_that_is_no_request_log_is_refused(tmp_path: Path, first: bytes, complaint: str) -> None:
    path = tmp_path / "log"
    path.write_bytes(first)
    with pytest.raises(ValueError, match=complaint):
        list(read_records(path))


# --- salt ------------------------------------------------------------------------------------------------


def test_the_salt_is_kept_beside_the_log_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "log"
    first = opened(path)
    run(first.aclose())
    kept = tmp_path / "log.salt"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    second = opened(path)
    run(second.aclose())
    assert first.salt == second.salt
    assert first.salt.decode() not in path.read_text()


def test_prefixes_stay_comparable_over_restarts_and_only_under_one_salt(tmp_path: Path) -> None:
    ours = tmp_path / "ours"
    ours.write_text("a secret of our own\n")
    logs = [opened(tmp_path / "a"), opened(tmp_path / "b"), opened(tmp_path / "c", salt_file=ours)]
    again = opened(tmp_path / "d", salt_file=ours)
    shared = "s" * BLOCK_CHARACTERS * 2
    short, long = (PromptKey.of_text("m", shared + tail) for tail in ("x", "y" * 300))
    for log in logs:
        one, two = short.blocks(log.salt, BLOCK_CHARACTERS), long.blocks(log.salt, BLOCK_CHARACTERS)
        assert one[:2] == two[:2]
    a, b, c = (short.blocks(log.salt)[0] for log in logs)
    assert len({a, b, c}) == 3
    assert c == short.blocks(again.salt)[0]
    assert logs[2].digest("session") == again.digest("session") != logs[0].digest("session")
    ids = [read_header(tmp_path / name).salt_id for name in "abcd"]
    assert ids[2] == ids[3]
    assert len(set(ids)) == 3
    for log in (*logs, again):
        run(log.aclose())


@pytest.mark.parametrize("size", [16, 64, 65, 1000])
def test_a_salt_of_any_length_serves(tmp_path: Path, size: int) -> None:
    path = tmp_path / "salt"
    path.write_bytes(b"x" * size)
    assert len(PromptKey.of_text("m", "hello").blocks(load_salt(path))) == 1


@pytest.mark.parametrize("content", ["", "hello\n", "x" * 15])
def test_a_salt_that_is_no_secret_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "salt"
    path.write_text(content)
    with pytest.raises(ValueError, match="at least 16 bytes are needed"):
        load_salt(path)
