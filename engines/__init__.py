"""Stand-ins for LLM engines: a pure model of one (`engines.model`) and a server around it (`engines.mock`)."""
