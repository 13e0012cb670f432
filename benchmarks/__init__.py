"""Measurements side by side with what a person would pick instead: `python -m benchmarks.NAME [--json]`."""
