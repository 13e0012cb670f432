"""Lets `python -m bertwright` do what the command `bertwright` does."""

import sys

from bertwright.cli import main

if __name__ == "__main__":
    sys.exit(main())
