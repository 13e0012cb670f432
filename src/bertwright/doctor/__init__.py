"""Checks of the machine, a model, a corpus and labelled data before a long run."""
