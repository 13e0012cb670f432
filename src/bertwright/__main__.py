"""Lets `python -m bertwright` do what the command `bertwright` does."""

from bertwright.cli import process

if __name__ == "__main__":
    process()
