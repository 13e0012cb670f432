"""An encoder and labelled data → a model for a task."""
