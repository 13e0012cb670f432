"""Import of checkpoints in other formats; export of models for other programs."""
