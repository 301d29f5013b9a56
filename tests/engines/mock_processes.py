"""Mock engines as processes of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


@contextmanager
def engines(*flags: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """A process, and the URLs that it prints; killed if a test leaves it running."""
    count = int(flags[flags.index("--count") + 1]) if "--count" in flags else 1
    command = [sys.executable, "-m", "engines.mock", "--port", "0", *flags]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ}
    )
    assert process.stdout is not None
    try:
        lines = [process.stdout.readline() for _ in range(count)]
        found = [re.match(r"http://127\.0\.0\.1:\d+", line) for line in lines]
        assert all(found), lines
        yield process, [match[0] for match in found if match]
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdout.close()
