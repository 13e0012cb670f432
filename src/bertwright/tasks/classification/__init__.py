"""Sentence, pair and regression tasks."""
