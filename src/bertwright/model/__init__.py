"""Batches → hidden states → logits, and the model folder."""
