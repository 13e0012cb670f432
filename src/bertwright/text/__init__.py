"""Raw text → token ids."""
