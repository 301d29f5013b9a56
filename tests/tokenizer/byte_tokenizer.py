"""A tokenizer small enough to be written here: a token for each byte, a few longer ones, and special ones."""

from __future__ import annotations

from typing import Any

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
BEGIN = 256
_PAIRS = ("t h", "th e", "i n", "e r", "o n")


def byte_letters() -> list[str]:
    """GPT-2's printable letter for each byte: itself where it prints, else one from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    letters, others = [], 0
    for byte in range(256):
        letters.append(chr(byte if byte in printable else 256 + others))
        others += byte not in printable
    return letters


def tokenizer() -> dict[str, Any]:
    """As `tokenizer.json` has it. A prompt may begin with the first special token where that is asked for."""
    vocabulary = {letter: token for token, letter in enumerate(byte_letters())}
    special = {text: BEGIN + place for place, text in enumerate(SPECIAL)}
    merged = {pair.replace(" ", ""): BEGIN + len(SPECIAL) + place for place, pair in enumerate(_PAIRS)}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    begin = {"id": SPECIAL[0], "ids": [BEGIN], "tokens": [SPECIAL[0]]}
    first = {"SpecialToken": {"id": SPECIAL[0], "type_id": 0}}
    return {
        "version": "1.0",
        "truncation": {"max_length": 8, "strategy": "LongestFirst", "stride": 0, "direction": "Right"},
        "padding": None,
        "added_tokens": [{"id": token, "content": text, **flags} for text, token in special.items()],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [first, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {SPECIAL[0]: begin},
        },
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {**vocabulary, **special, **merged},
            "merges": list(_PAIRS),
        },
    }
