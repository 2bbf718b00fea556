"""User code: environments and tasks, reward functions, and copies of what these are given."""
