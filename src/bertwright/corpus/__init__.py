"""Token ids → batches."""
