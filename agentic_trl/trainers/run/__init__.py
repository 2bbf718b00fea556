"""A run over time: checkpoints, metrics, trajectories as JSON lines, and the watch on what a method lives on."""
