"""Batches → logits."""
