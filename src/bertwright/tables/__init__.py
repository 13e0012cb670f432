"""Labelled tables in, predictions out: csv, tsv, JSON lines, Parquet."""
