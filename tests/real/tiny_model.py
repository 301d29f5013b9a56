"""Writes a Llama of two layers that every engine can load: `python tiny_model.py DIRECTORY`.

Run by the interpreter of an engine, for its numpy and safetensors. Needs no torch, nothing of this project.
Its weights are chance from a fixed seed, so its greedy text is nonsense, but the same everywhere.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file  # type: ignore[import-not-found] # only engines have it

HIDDEN = 64
INTERMEDIATE = 128
LAYERS = 2
HEADS = 2
VOCABULARY = 320
CONTEXT_TOKENS = 4096
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
END, TURN_END = 256, 258

_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_letters() -> list[str]:
    """GPT-2's printable letter for each byte: itself where it prints, else one from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    letters = []
    for byte in range(256):
        others_before = sum(other not in printable for other in range(byte))
        letters.append(chr(byte if byte in printable else 256 + others_before))
    return letters


def tokenizer() -> dict[str, Any]:
    """One token per byte, and the special ones behind them."""
    vocabulary = {letter: token for token, letter in enumerate(byte_letters())}
    special = {text: 256 + place for place, text in enumerate(SPECIAL)}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": token, "content": text, **flags} for text, token in special.items()],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {**vocabulary, **special},
            "merges": [],
        },
    }


def config() -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": HIDDEN // HEADS,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": CONTEXT_TOKENS,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": END,
        "eos_token_id": TURN_END,
        "pad_token_id": END,
        "dtype": "float32",
    }


def weights() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(20)

    def drawn(*shape: int) -> np.ndarray:
        return (generator.standard_normal(shape) * 0.2).astype(np.float32)

    ones = np.ones(HIDDEN, dtype=np.float32)
    head = drawn(VOCABULARY, HIDDEN)
    # Only printable ASCII is ever the likeliest: text that reads, and answers that end by length alone.
    for token in range(VOCABULARY):
        if not 0x20 <= token < 0x7F:
            head[token] = 0.0
    found = {"model.embed_tokens.weight": drawn(VOCABULARY, HIDDEN), "model.norm.weight": ones}
    found["lm_head.weight"] = head
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        for name in "qkvo":
            found[f"{at}self_attn.{name}_proj.weight"] = drawn(HIDDEN, HIDDEN)
        for name in ("gate", "up"):
            found[f"{at}mlp.{name}_proj.weight"] = drawn(INTERMEDIATE, HIDDEN)
        found[f"{at}mlp.down_proj.weight"] = drawn(HIDDEN, INTERMEDIATE)
        found[f"{at}input_layernorm.weight"] = found[f"{at}post_attention_layernorm.weight"] = ones
    return found


def write(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    files = {
        "config.json": config(),
        "generation_config.json": {"eos_token_id": TURN_END, "pad_token_id": END},
        "tokenizer.json": tokenizer(),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": SPECIAL[2],
            "pad_token": SPECIAL[0],
            "bos_token": None,
            "model_max_length": CONTEXT_TOKENS,
            "clean_up_tokenization_spaces": False,
            "chat_template": _TEMPLATE,
        },
    }
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content, indent=1), encoding="utf-8")
    save_file(weights(), directory / "model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    write(Path(sys.argv[1]))
