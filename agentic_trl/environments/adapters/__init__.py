"""Adapters: environments of other libraries as text environments, one file per library."""
