"""Shards → encoder: pre-training, from settings to a model folder."""
