"""Laws of the trace readers: what is a request, what is left out, what refuses the file."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from router.studies.traces import FORMATS, TraceEntry, TraceError, read_trace, statistics
from router.studies.traces.files import recognise
from router.studies.traces.pointsman import block_tokens
from router.telemetry.record import Header, Phases, RequestRecord

SAMPLES = Path(__file__).resolve().parents[3] / "shared" / "data"

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:51.2224670,879,55
"""
BURST = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,0,1087,Conversation log
118.5,GPT-4,417,276,693,API log
"""
BURST_SESSIONS = """Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,\
Log Type
5,s-1,2.1,ChatGPT,472,18,490,Conversation log
9,s-2,0.4,ChatGPT,10,7,17,Conversation log
30,s-1,1.0,ChatGPT,520,33,553,Conversation log
31,,1.0,GPT-4,5,3,8,API log
"""
MOONCAKE = """{"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]}
{"timestamp": 0, "input_length": 700, "output_length": 9, "hash_ids": [0, 3]}

{"timestamp": 3000, "input_length": 600, "output_length": 0, "hash_ids": [0, 4]}
{"timestamp": 6001, "input_length": 512, "output_length": 1, "hash_ids": [0]}
"""


def written(tmp_path: Path, text: str | bytes, name: str = "trace") -> Path:
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def request(**fields: object) -> RequestRecord:
    known: dict[str, object] = {
        "arrival": 1_700_000_000.0,
        "id": "r",
        "model": "m",
        "api": "chat/completions",
        "stream": True,
        "prompt_tokens": 100,
        "output_tokens": 10,
        "phases": Phases(total_s=1.0),
        "outcome": "ok",
        "status": 200,
    }
    return RequestRecord(**{**known, **fields})  # type: ignore[arg-type]  # fields are given by name


def request_log(tmp_path: Path, *records: RequestRecord, tail: bytes = b"") -> Path:
    lines = [msgspec.json.encode(item) + b"\n" for item in (Header(), *records)]
    return written(tmp_path, b"".join(lines) + tail, "requests.jsonl")


def test_azure_arrivals_count_from_the_first_request(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, AZURE))
    assert trace.format == "azure"
    assert [(e.prompt_tokens, e.output_tokens) for e in trace.entries] == [(374, 44), (396, 109), (879, 55)]
    assert [e.arrival_s for e in trace.entries] == pytest.approx([0.0, 4.314579, 4.541877], abs=2e-6)
    assert [e.line for e in trace.entries] == [2, 3, 4]
    assert trace.block_tokens == 0


def test_azure_times_may_carry_a_zone(tmp_path: Path) -> None:
    text = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2024-05-10 00:00:00.009930+00:00,5,6\n2024-05-10 02:00:01.009930+02:00,7,8\n"
    )
    assert read_trace(written(tmp_path, text)).entries[1].arrival_s == pytest.approx(1.0, abs=2e-6)


def test_azure_rows_without_prompt_or_output_are_left_out_and_counted(tmp_path: Path) -> None:
    text = AZURE + "2023-11-16 18:15:52.0,0,5\n2023-11-16 18:15:52.0,5,0\n"
    trace = read_trace(written(tmp_path, text))
    assert len(trace.entries) == 3
    assert trace.skipped == {"no prompt": 1, "no output": 1}


def test_burstgpt_failures_are_left_out_and_counted(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, BURST))
    assert trace.format == "burstgpt"
    assert [(e.arrival_s, e.prompt_tokens, e.output_tokens, e.model) for e in trace.entries] == [
        (0.0, 472, 18, "ChatGPT"),
        (113.5, 417, 276, "GPT-4"),
    ]
    assert trace.skipped == {"failed in the trace (0 response tokens)": 1}
    assert {e.session for e in trace.entries} == {None}


def test_burstgpt_with_sessions_keeps_them(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, BURST_SESSIONS))
    assert trace.format == "burstgpt"
    assert [e.session for e in trace.entries] == ["s-1", "s-2", "s-1", None]
    assert statistics(trace).sessions == 2


def test_mooncake_ids_become_block_names_of_512_tokens(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, MOONCAKE))
    assert trace.format == "mooncake"
    assert trace.block_tokens == 512
    assert [e.blocks for e in trace.entries] == [("0", "1", "2"), ("0", "3"), ("0",)]
    assert [e.arrival_s for e in trace.entries] == [0.0, 0.0, 6.001]
    assert [e.line for e in trace.entries] == [1, 2, 5]
    assert trace.skipped == {"no output": 1}


def test_the_request_log_becomes_a_trace_in_order_of_arrival(tmp_path: Path) -> None:
    path = request_log(
        tmp_path,
        request(arrival=20.0, blocks=("a", "b"), affinity="f", tenant="t"),
        request(arrival=10.0, n=3, output_tokens=10),
    )
    trace = read_trace(path)
    assert trace.format == "pointsman"
    late = TraceEntry(
        arrival_s=10.0,
        prompt_tokens=100,
        output_tokens=10,
        blocks=("a", "b"),
        model="m",
        tenant="t",
        session="f",
        line=2,
    )
    assert list(trace.entries) == [
        TraceEntry(arrival_s=0.0, prompt_tokens=100, output_tokens=4, model="m", line=3),
        late,
    ]


def test_what_the_request_log_cannot_repeat_is_left_out_with_its_reason(tmp_path: Path) -> None:
    path = request_log(
        tmp_path,
        request(api="embeddings"),
        request(prompt_tokens=None),
        request(output_tokens=None),
        request(),
        tail=b'{"arrival": 1',
    )
    trace = read_trace(path)
    assert len(trace.entries) == 1
    assert trace.skipped == {"generates nothing": 1, "prompt length unknown": 1, "no output": 1}


@pytest.mark.parametrize(
    ("api", "sent"),
    [
        ("chat", True),
        ("chat/completions", True),
        ("completions", True),
        ("responses", True),
        ("messages", True),
        ("other", False),
        ("embeddings", False),
    ],
)
def test_every_api_that_generates_is_replayed(tmp_path: Path, api: str, sent: bool) -> None:
    trace = read_trace(request_log(tmp_path, request(api=api), request()))
    assert len(trace.entries) == 1 + sent


def test_tokens_of_a_log_block_are_the_median_of_the_longer_prompts() -> None:
    def entry(prompt_tokens: int, blocks: int) -> TraceEntry:
        names = tuple(map(str, range(blocks)))
        return TraceEntry(arrival_s=0, prompt_tokens=prompt_tokens, output_tokens=1, blocks=names, line=1)

    assert block_tokens([entry(5, 0)]) == 0
    assert block_tokens([entry(500, 2)]) == 64  # too short to say anything
    assert block_tokens([entry(475, 10), entry(475, 10), entry(9_000, 10), entry(999, 1)]) == 50


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (AZURE + "yesterday,1,2\n", "line 5: TIMESTAMP is 'yesterday'"),
        (AZURE + "2023-11-16 18:15:52,1\n", "line 5: 2 cells where the header names 3"),
        (AZURE + "2023-11-16 18:15:52,-1,2\n", "line 5: ContextTokens is '-1'"),
        (AZURE + "2023-11-16 18:15:52,1,2.5\n", "line 5: GeneratedTokens is '2.5'"),
        (BURST + "nan,m,1,1,2,x\n", "line 5: Timestamp is 'nan'"),
        (BURST + "soon,m,1,1,2,x\n", "line 5: Timestamp is 'soon'"),
        (MOONCAKE + '{"timestamp": 1}\n', "line 6: not a Mooncake record"),
        (MOONCAKE + "[]\n", "line 6: not a Mooncake record"),
        (
            MOONCAKE + '{"timestamp":1,"input_length":512,"output_length":1,"hash_ids":[1,2]}\n',
            "line 6: 2 hash_ids are more than 512 tokens fill",
        ),
    ],
)
def test_a_line_that_breaks_its_format_refuses_the_file_by_number(
    tmp_path: Path, text: str, said: str
) -> None:
    with pytest.raises(TraceError) as caught:
        read_trace(written(tmp_path, text, "broken.csv"))
    assert f"broken.csv, {said}" in str(caught.value)


def test_a_broken_line_of_the_request_log_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="line 3 of"):
        read_trace(request_log(tmp_path, request(), tail=b"{}\n"))


@pytest.mark.parametrize("text", ["", "\n\n"])
def test_an_empty_file_is_called_so(tmp_path: Path, text: str) -> None:
    with pytest.raises(TraceError, match="is empty: it holds no request"):
        read_trace(written(tmp_path, text))


@pytest.mark.parametrize("text", ["a,b\n1,2\n", '{"a": 1}\n', "{broken\n", "\x00\x01"])
def test_an_unknown_file_is_refused_with_the_formats_that_are_known(tmp_path: Path, text: str) -> None:
    with pytest.raises(TraceError) as caught:
        read_trace(written(tmp_path, text))
    assert all(name in str(caught.value) for name in FORMATS)


def test_a_format_that_is_named_is_not_guessed_again(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no column named Timestamp, Model"):
        read_trace(written(tmp_path, "a,b\n1,2\n"), "burstgpt")


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b'{"timestamp": 0\xff}\n'])
def test_a_file_that_is_no_text_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(TraceError):
        read_trace(written(tmp_path, content))


def test_a_missing_file_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"cannot read the trace gone\.csv"):
        read_trace(tmp_path / "gone.csv")


def test_a_trace_without_a_request_says_why(tmp_path: Path) -> None:
    text = BURST.splitlines()[0] + "\n1,m,4,0,4,x\n"
    with pytest.raises(TraceError, match="1 × failed in the trace"):
        read_trace(written(tmp_path, text))


def test_limit_takes_the_first_requests_and_reads_no_further(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, AZURE + "broken\n"), limit=2)
    assert [e.prompt_tokens for e in trace.entries] == [374, 396]


def test_requests_out_of_order_are_sorted_by_arrival_and_keep_their_lines(tmp_path: Path) -> None:
    text = BURST.splitlines()[0] + "\n9,m,1,1,2,x\n4,m,2,2,4,x\n"
    assert [(e.arrival_s, e.line) for e in read_trace(written(tmp_path, text)).entries] == [
        (0.0, 3),
        (5.0, 2),
    ]


def test_a_byte_order_mark_and_crlf_change_nothing(tmp_path: Path) -> None:
    plain = read_trace(written(tmp_path, AZURE))
    dressed = read_trace(written(tmp_path, b"\xef\xbb\xbf" + AZURE.replace("\n", "\r\n").encode()))
    assert plain.entries == dressed.entries


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (AZURE.splitlines()[0], "azure"),
        (BURST.splitlines()[0], "burstgpt"),
        (BURST_SESSIONS.splitlines()[0], "burstgpt"),
        (MOONCAKE.splitlines()[0], "mooncake"),
        (msgspec.json.encode(Header()).decode(), "pointsman"),
        ("what,ever", None),
    ],
)
def test_each_format_is_recognised_by_its_first_line(line: str, name: str | None) -> None:
    assert recognise(line) == name


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="the public samples are not on this machine")
@pytest.mark.parametrize(
    ("name", "kind", "requests", "prompt_mean", "output_mean", "gap_cv"),
    [
        ("azure2023_code.csv", "azure", 8_819, 2_048, 27.9, 13.2),
        ("azure2023_conv.csv", "azure", 19_366, 1_155, 211, 1.09),
        ("mooncake_conversation.jsonl", "mooncake", 12_031, 12_035, 343, None),
        ("mooncake_synthetic.jsonl", "mooncake", 3_993, 15_325, 149, None),
    ],
)
def test_the_public_samples_read_as_published(
    name: str, kind: str, requests: int, prompt_mean: float, output_mean: float, gap_cv: float | None
) -> None:
    trace = read_trace(SAMPLES / name)
    figures = statistics(trace)
    assert (trace.format, figures.requests, trace.skipped) == (kind, requests, {})
    assert figures.prompt_tokens is not None
    assert figures.output_tokens is not None
    assert figures.prompt_tokens.mean == pytest.approx(prompt_mean, rel=0.002)
    assert figures.output_tokens.mean == pytest.approx(output_mean, rel=0.005)
    if gap_cv is not None:
        assert figures.gap_cv == pytest.approx(gap_cv, rel=0.01)
