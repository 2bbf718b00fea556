"""One file, one paper: pure functions of tensors, no model, no trainer, no configuration."""
