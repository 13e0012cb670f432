"""One training loop for everything."""
