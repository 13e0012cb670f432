"""Search with sentence vectors: exact search, its metrics, and the evaluation of vectors."""
