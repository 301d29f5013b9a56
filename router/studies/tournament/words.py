"""What is to be said of rounds of the stored tournament.

Separate from the page, which is made of figures alone, so that a sentence about a figure has one place.
"""

from __future__ import annotations

WORDS = ""
"""Markdown, put below the table of rounds."""
