"""Engines that sample answers: token ids in, token ids and log-probabilities out."""
