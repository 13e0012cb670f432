"""Models in use: from Python, over HTTP, in a browser."""
