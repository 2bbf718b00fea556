"""The three interfaces that are spoken: each reads a body, and writes an answer whole or as events."""
