"""labelled tables → rows → predictions: csv, tsv, JSON lines, Parquet."""
