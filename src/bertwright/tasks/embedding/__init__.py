"""Vectors of sentences and passages: learned from pairs of texts, compared by their cosine."""
