"""Pages and lists of what run folders hold."""
