"""Measurements that were made once, each with the page or the entry of the log that shows its results."""
