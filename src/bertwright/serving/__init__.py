"""A model in use: from Python, over HTTP, in a browser."""
