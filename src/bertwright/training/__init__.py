"""Batches → weights: the training loop of pre-training and fine-tuning, with its checkpoints and run folders."""
