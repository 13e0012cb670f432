"""The text in our own words that tests learn from, and the places that made-up records speak of."""

from pathlib import Path

from bertwright.text.wordpiece import Tokenizer

OWN_TEXT = Path(__file__).parents[1] / "fixtures" / "own_text.txt"
PLACES = ("harbour", "garden", "library", "kitchen", "station", "meadow", "tower", "bridge")


def own_lines() -> list[str]:
    """Return the lines of the text, empty ones left out."""
    return [line for line in OWN_TEXT.read_text("utf-8").splitlines() if line]


def pieces_of(tokenizer: Tokenizer, text: str) -> list[str]:
    """Return the pieces of a text, without special tokens."""
    return [tokenizer.pieces[id] for id in tokenizer.ids([text])[0]]
