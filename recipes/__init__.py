"""Recipes and the scripts that run them; see README.md here."""
