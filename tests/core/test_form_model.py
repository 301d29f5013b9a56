"""The model of a form is its own field, whatever else the form says, and in however many pieces it comes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.form_model import FormModel

TYPE = b"multipart/form-data; boundary=cut"


def part(disposition: bytes, value: bytes) -> bytes:
    return b"--cut\r\nContent-Disposition: form-data; " + disposition + b"\r\n\r\n" + value + b"\r\n"


MODEL = part(b'name="model"', b"m-1")
END = b"--cut--\r\n"


def read(body: bytes, step: int = 1 << 20, content_type: bytes = TYPE) -> FormModel:
    form = FormModel(content_type)
    for start in range(0, len(body), step):
        form.feed(body[start : start + step])
    assert bytes(form.head) == body
    return form


@pytest.mark.parametrize("step", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(
    "before",
    [
        b"",
        b"\r\n",
        b"a preamble\r\n",
        part(b'name="file"; filename="model"', b"RIFF\r\n\r\nother\r\n"),
        part(b'name="model"; filename="m.wav"', b"other"),
        part(b"name=model; filename*=utf-8''m.wav", b"other"),
        part(b'name="model_hint"', b"other"),
        part(b'name="the model"', b"other"),
        part(b'name="file"; filename="x\\"; name=\\"model"', b"other"),
        part(b'name="prompt"', b'name="model"\r\n\r\nother\r\n'),
        part(b'name="prompt"', b'Content-Disposition: form-data; name="model"\r\n\r\nother\r\n'),
        b"--cut\r\n\r\nno head\r\n",
    ],
)
def test_only_the_field_itself_counts(before: bytes, step: int) -> None:
    assert read(before + MODEL + END, step).model == "m-1"


@pytest.mark.parametrize(
    "disposition", [b"name=model", b'NAME="model"', b'a=b; name="model"', b'name = "model"']
)
def test_the_name_may_be_written_in_every_way_that_forms_allow(disposition: bytes) -> None:
    assert read(part(disposition, b"m-1") + END).model == "m-1"


def test_the_boundary_may_be_quoted_and_hold_what_patterns_would_mean_something_by() -> None:
    body = MODEL.replace(b"cut", b"(a+)+$ b") + b"--(a+)+$ b--"
    assert read(body, content_type=b'multipart/form-data; charset=utf-8; boundary="(a+)+$ b"').model == "m-1"


def test_an_empty_model_is_there_but_empty() -> None:
    assert read(part(b'name="model"', b"") + END).model == ""


def test_a_model_is_not_known_before_it_is_complete() -> None:
    form = FormModel(TYPE)
    for byte in MODEL + b"--cut":
        assert form.model is None
        form.feed(bytes([byte]))
    assert form.model == "m-1"


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        (b"multipart/form-data", MODEL + END),
        (TYPE, END + MODEL),
        (TYPE, b"--cut\r\nx: " + b"y" * 9000),
    ],
)
def test_a_form_in_which_nothing_can_be_found_is_over(content_type: bytes, body: bytes) -> None:
    form = read(body, content_type=content_type)
    assert form.model is None
    assert form.over


def test_a_value_too_long_for_a_name_is_not_the_model() -> None:
    assert read(part(b'name="model"', b"m" * 600) + END).model is None


@given(st.binary(max_size=300).filter(lambda text: b"--cut" not in text), st.integers(1, 50))
def test_no_text_of_another_field_is_taken_for_the_model(text: bytes, step: int) -> None:
    assert read(part(b'name="text"', text) + MODEL + END, step).model == "m-1"


class Counted(bytearray):
    """Counts the bytes that are searched."""

    searched = 0

    def find(self, *args: object) -> int:
        start = args[1] if len(args) > 1 else 0
        assert isinstance(start, int)
        found = super().find(*args)  # type: ignore[arg-type]  # handed through
        Counted.searched += (found if found >= 0 else len(self)) - start + 1
        return found


@pytest.mark.parametrize("filler", [b"name=model\r\n", b"\r\n--cu", b"--cut\r\n\r\n\r\n", b"x", b"\r\n\r\n"])
def test_looking_for_the_model_costs_no_more_than_the_form_is_long(filler: bytes) -> None:
    body = b"--cut\r\nContent-Disposition: form-data; name=a\r\n\r\n" + filler * (20_000 // len(filler))
    form = FormModel(TYPE)
    form.head = Counted()
    Counted.searched = 0
    for byte in body:
        form.feed(bytes([byte]))
    assert form.model is None
    assert Counted.searched < 20 * len(body)
