"""Tasks that label words: names, parts of speech."""
