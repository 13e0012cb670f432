"""`python -m bertwright`: the same as the command `bertwright`."""

from bertwright.cli import main

if __name__ == "__main__":
    main()
