"""Other people's files: checkpoints of other formats in, models for other programs out."""
