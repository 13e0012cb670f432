"""The encoder on processors: fused products for answering and for training."""
