"""The whole way in a few minutes, on the documentation of this machine."""
