"""One module for each group of tables of the paper: every experiment is registered by being here."""
