"""From text to token ids and back: chat templates, escaping, parsing of responses."""
