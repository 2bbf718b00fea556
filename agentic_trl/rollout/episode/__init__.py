"""One attempt at an episode: the order of its calls, and what grows while it runs."""
