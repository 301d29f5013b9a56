"""The page about the mock engine leaves out nothing that can be asked of it."""

from __future__ import annotations

import re
from pathlib import Path

from engines.mock.__main__ import parser
from engines.mock.faults import KINDS
from engines.mock.settings import SCHEDULING_POLICIES

PAGE = Path("docs/mock-engine.md").read_text()
QUOTED = set(re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)))


def test_every_flag_is_on_the_page_and_no_other() -> None:
    flags = {
        flag for action in parser()._actions for flag in action.option_strings if not flag.startswith("--no-")
    } - {"-h", "--help"}
    named = {word for text in QUOTED for word in re.findall(r"^--[a-z-]+", text)}
    assert named == flags


def test_every_fault_and_every_order_is_on_the_page() -> None:
    assert set(KINDS) <= QUOTED
    assert set(SCHEDULING_POLICIES) <= QUOTED
