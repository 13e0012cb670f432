"""Pre-training objectives: shards → rows → batches → loss."""
