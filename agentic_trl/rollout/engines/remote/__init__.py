"""A model behind an OpenAI-compatible URL."""
