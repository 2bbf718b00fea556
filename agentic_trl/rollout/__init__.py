"""Rollouts: the collecting loop, chat rendering, parsing of answers, and generation engines."""
