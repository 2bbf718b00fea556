"""A run over time: checkpoints, metrics, trajectories as JSON lines, and the watch on the success threshold."""
