"""Trainers on TRL: configuration, the hooks that are overridden, and the classes that users build."""
