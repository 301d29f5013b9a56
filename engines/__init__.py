"""Stand-ins for LLM engines: `engines.model` is a pure model of one, `engines.mock` a server around it."""
