"""Checkpoints: one file each, verified by its own digest, plain tensors and plain types."""
