"""Modules of the paper's tables. Every `Experiment` at the top level of a module here is registered."""
