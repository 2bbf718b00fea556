"""Engines that sample responses: token ids in, token ids and log-probabilities out."""
