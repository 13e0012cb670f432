"""Kinds of tasks: their data, models, metrics and predictions."""
