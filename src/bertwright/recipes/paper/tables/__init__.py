"""name → experiment: a file for each table or figure, found by being here; nothing in here needs torch."""
