"""Questions answered by a span of a passage: SQuAD."""
