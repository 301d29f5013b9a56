"""What a configuration is refused for."""

from __future__ import annotations

import pytest
from pydantic import ValidationError


def refusal(error: pytest.ExceptionInfo[ValidationError]) -> str:
    return " / ".join(details["msg"] for details in error.value.errors())
