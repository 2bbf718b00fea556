"""Environments: the base class, the registry, and one file per environment."""
