"""text → token ids: readers of raw text, sentences, tokenizers."""
