"""Shards → an encoder: the run from settings to a model folder."""
