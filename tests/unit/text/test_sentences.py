"""Parting paragraphs into sentences."""

from itertools import islice
from pathlib import Path

import pytest
from pydantic import ValidationError

from bertwright.cli import main
from bertwright.text.document import Document, TextSettings
from bertwright.text.documents import read_documents
from bertwright.text.sentences import split_sentences
from tests.support.texts import OWN_TEXT


def split(*paragraphs: str, **settings: str) -> list[str]:
    return split_sentences(Document(paragraphs, "a.txt:1"), TextSettings.model_validate(settings))


def test_sentences_of_english_with_abbreviations_and_numbers() -> None:
    assert split("Dr. Amsel weighed 1.2 kg. She was right! Was she?", "A heading without end") == [
        "Dr. Amsel weighed 1.2 kg.",
        "She was right!",
        "Was she?",
        "A heading without end",
    ]


def test_paragraphs_stay_apart() -> None:
    assert split("the end of one", "the start of another") == ["the end of one", "the start of another"]


def test_white_space_is_tidied_and_empty_sentences_dropped() -> None:
    assert split("One.  \t Two\u00a0words.\n\n \u2003 Three.", " ", "\u00a0") == ["One.", "Two words.", "Three."]


def test_sentences_that_are_given_are_kept() -> None:
    assert split("Two here. They stay one.", "Next.", lines="sentences") == ["Two here. They stay one.", "Next."]


@pytest.mark.parametrize(
    ("language", "text", "expected"),
    [
        ("ko", "골목은 어두워졌다. 책방은 그대로다.", ["골목은 어두워졌다.", "책방은 그대로다."]),
        ("ja", "パン屋があります。匂いが広がります。", ["パン屋があります。", "匂いが広がります。"]),
    ],
)
def test_other_languages(language: str, text: str, expected: list[str]) -> None:
    assert split(text, language=language) == expected


@pytest.mark.parametrize("language", ["de", "DE", "de-AT", "de-x-other"])
def test_a_languages_rules_are_found_under_each_of_its_codes(language: str) -> None:
    text = "Am 3. Mai kam Prof. Kunz. Ende gut."
    assert split(text, language=language) == ["Am 3. Mai kam Prof. Kunz.", "Ende gut."]
    assert split(text) != split(text, language=language)


@pytest.mark.parametrize("language", ["zz", "jp", "cz-CZ", "english", "e", "", "en_GB", "en-"])
def test_what_is_no_language_is_refused(language: str) -> None:
    with pytest.raises(ValidationError, match=f"'{language}' is no language; allowed are the two letters of ISO 639-1"):
        TextSettings(language=language)


def test_the_command_line_says_which_languages_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["corpus", "build", "a.txt", "--tokenizer", "tok", "--out", "corpus", "--language", "zz"]) == 2
    assert "bertwright: language: 'zz' is no language; allowed are" in capsys.readouterr().err


def test_a_language_without_two_letters_has_three() -> None:
    assert TextSettings(language="ast").language == "ast"
    assert TextSettings(language="Nds-NL").language == "nds-nl"


@pytest.mark.parametrize("mark", ["。", "！", "？」", "。\u201d"])
def test_a_book_in_one_line_has_the_sentences_of_its_parts(mark: str) -> None:
    sentences = [f"第{number}句话里有{'很' * (number % 40)}多的字{mark}" for number in range(1000)]
    assert len("".join(sentences)) > 2 * 10_000
    assert split("".join(sentences), language="zh") == sentences


def test_no_character_is_lost() -> None:
    nothing_lost(OWN_TEXT)


def test_no_character_of_wikipedia_is_lost(shared_data: Path) -> None:
    nothing_lost(shared_data / "enwiki" / "heldout.xz")


def nothing_lost(path: Path) -> None:
    settings = TextSettings()
    num_sentences = num_paragraphs = 0
    for document in islice(read_documents(path, settings), 60):
        sentences = split_sentences(document, settings)
        assert "".join("".join(sentences).split()) == "".join("".join(document.paragraphs).split()), document.location
        assert all(sentence == " ".join(sentence.split()) != "" for sentence in sentences)
        num_sentences += len(sentences)
        num_paragraphs += len(document.paragraphs)
    assert num_sentences > 2 * num_paragraphs
