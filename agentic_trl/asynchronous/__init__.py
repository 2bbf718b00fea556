"""Episodes played by a process of their own while the trainer trains."""
