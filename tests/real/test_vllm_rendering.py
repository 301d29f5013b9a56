"""Chats become the same token ids here and in vLLM, whatever is special about them."""

from __future__ import annotations

import json
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from router.core.request import Api
from router.tokenizer.tokenizer import Tokenizer
from tests.real.install import ROOT, python_of
from tests.tokenizer.prompts import CHATS, TEMPLATES, directory

CASES = [(template, name) for template in TEMPLATES for name in CHATS]
ORACLE = ROOT / "tests" / "real" / "render_oracle.py"


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], list[int] | None]:
    """What vLLM makes of every case."""
    model = directory(tmp_path_factory.mktemp("model"), None)
    cases = [{"template": TEMPLATES[template], "body": CHATS[name]} for template, name in CASES]
    done = subprocess.run(
        [str(python_of("vllm")), "-P", str(ORACLE), str(model)],  # -P: our vllm.py is not theirs
        input=json.dumps(cases), capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    made: list[Any] = json.loads(done.stdout[done.stdout.index("[[") :])
    return dict(zip(CASES, made, strict=True))


@pytest.mark.parametrize(("template", "name"), CASES)
def test_a_chat_has_the_same_token_ids_in_vllm(
    wanted: dict[tuple[str, str], list[int] | None], tmp_path: Path, template: str, name: str
) -> None:
    tokenizer = Tokenizer(directory(tmp_path, TEMPLATES[template]), lambda: datetime.now(UTC))
    body = {field: json.dumps(value).encode() for field, value in CHATS[name].items()}
    assert list(tokenizer.ids(Api.CHAT, body)) == wanted[template, name]
