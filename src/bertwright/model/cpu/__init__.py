"""The encoder on processors: packed weights and fused kernels for inference."""
