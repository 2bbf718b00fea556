"""Scripts that users start from; see the README."""
