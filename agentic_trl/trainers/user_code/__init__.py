"""What users bring: environments and tasks, reward functions, and what these are handed."""
