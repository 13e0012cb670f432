"""Task → prediction: the models of tasks, and what they answer."""
