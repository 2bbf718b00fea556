"""Sampling with a transformers model and a cache that fits it."""
