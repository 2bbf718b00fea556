"""Rollouts: the collecting loop, chat rendering, parsing of responses, and engines."""
