"""text → the paper's tables: each table and figure as an experiment that one command carries out (§4, §5, §C)."""
