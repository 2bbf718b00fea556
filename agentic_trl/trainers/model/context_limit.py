"""Facts from a model's configuration: the limit of its context."""

from typing import Any


def context_limit(model: Any) -> int | None:
    """Return how many tokens a model can attend to, prompt and response together.

    Returns:
        ``max_position_embeddings`` of the text model; ``None`` where the configuration names none, as of a
        recurrent model or one with position biases.
    """
    config = getattr(model, "config", model)
    limit: int | None = getattr(config.get_text_config(), "max_position_embeddings", None)
    return limit if limit is not None and limit > 0 else None
