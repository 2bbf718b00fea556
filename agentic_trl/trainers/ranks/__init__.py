"""Several processes: what may be spread over them, and what they do together."""
