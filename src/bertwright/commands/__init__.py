"""One function per command: its options, then one call into the package. Heavy imports stay inside the functions."""
