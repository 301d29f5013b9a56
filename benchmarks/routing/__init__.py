"""How well routers place requests: evenly, and where their prompts are cached already."""
