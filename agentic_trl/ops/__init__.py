"""Shared mathematics of the algorithms: pure functions of tensors that carry no method's name."""
