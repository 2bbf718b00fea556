"""Sampling with vLLM, in this process or on a server."""
