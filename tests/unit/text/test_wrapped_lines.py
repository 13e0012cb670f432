"""Text whose lines were wrapped is recognised, and a corpus of it is built with a notice."""

import textwrap
from pathlib import Path

import pytest

from bertwright.cli import main
from bertwright.text.wrapped_lines import looks_wrapped

SENTENCE = "The ship went out of the harbour before the sun came up, and nobody on the quay saw it leave. "
PARAGRAPHS = [SENTENCE * (2 + number % 4) + f"That was on day {number}." for number in range(40)]
WRAPPED = [line for paragraph in PARAGRAPHS for line in textwrap.wrap(paragraph, 70)]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (WRAPPED, True),
        (PARAGRAPHS, False),
        (WRAPPED[:20], False),  # too few to tell
        ([f"Item {'x' * (number % 40)}" for number in range(200)], False),  # a list of names
        ([SENTENCE[: 60 + number % 30] + "." for number in range(200)], False),  # a sentence on each line
        ([], False),
    ],
)
def test_wrapped_lines_are_long_and_end_within_sentences(lines: list[str], expected: bool) -> None:
    assert looks_wrapped(lines) == expected


@pytest.mark.parametrize(("lines", "said"), [("text", True), ("wrapped", False)])
def test_the_command_names_the_option(
    lines: str, said: bool, own_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "book.txt").write_text("\n\n".join(textwrap.fill(text, 70) for text in PARAGRAPHS), "utf-8")
    start = ["corpus", "build", str(tmp_path / "book.txt"), "--tokenizer", str(own_corpus / "tokenizer")]
    assert main([*start, "--out", str(tmp_path / "corpus"), "--lines", lines]) == 0
    assert ("--lines wrapped joins them" in capsys.readouterr().err) == said
