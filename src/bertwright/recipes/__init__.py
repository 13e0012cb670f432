"""Whole runs as functions."""
