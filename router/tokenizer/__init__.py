"""Prompts of text made into the token ids that an engine makes of them, without the engine.

Optional: the extra `tokenizer`. Files come from a local directory and are never fetched.
"""
