"""Parting paragraphs into sentences."""

from itertools import islice
from pathlib import Path

import pytest
from pydantic import ValidationError

from bertwright.cli import main
from bertwright.text import sentences
from bertwright.text.document import Document, TextSettings
from bertwright.text.documents import read_documents
from bertwright.text.languages import _TWO_AND_THREE_LETTERS, known_language
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


@pytest.mark.parametrize("language", ["de", "DE", "de-AT", "de-x-other", "deu", "ger", "DEU-AT"])
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
    assert [known_language(name) for name in ("ast", "AST-es", "ast-419", "als")] == ["ast", "ast", "ast", "als"]
    assert TextSettings(language="Nds-NL").language == "nds-nl"


def test_each_code_of_three_letters_belongs_to_one_language() -> None:
    entries = [entry.split(":") for entry in _TWO_AND_THREE_LETTERS.split()]
    codes = [code for _, *codes in entries for code in codes]
    assert len(codes) == len({*codes}) > 184
    assert {len(code) for code in codes} == {3}
    assert {len(two) for two, *_ in entries} == {2}
    assert all(codes for _, *codes in entries)
    assert known_language("fra") == known_language("fre") == "fr"


def test_no_code_of_three_letters_loses_rules_that_sentencex_has_for_it() -> None:
    """sentencex has rules for some of them, such as als, the code of the Alemannic Wikipedia."""
    text = "Am 3. Mai kam Prof. Kunz, vgl. Dr. Maier. St. Gallen z. B. liegt dort. 1. und 2. Art. 5 Abs. 3. Ende."
    english = sentences.sentencex.segment("en", text)
    for entry in _TWO_AND_THREE_LETTERS.split():
        for code in entry.split(":")[1:]:
            parts = sentences.sentencex.segment(code, text)
            assert parts in (english, sentences.sentencex.segment(known_language(code), text)), code


@pytest.mark.parametrize("mark", ["。", "！", "？」", "。\u201d", "．", "｡", "。」", "！」"])
def test_a_book_in_one_line_has_the_sentences_of_its_parts(mark: str) -> None:
    sentences = [f"第{number}句话里有{'很' * (number % 40)}多的字{mark}" for number in range(1000)]
    assert len("".join(sentences)) > 2 * 10_000
    assert split("".join(sentences), language="zh") == sentences


def test_the_time_of_a_book_without_spaces_is_not_quadratic(monkeypatch: pytest.MonkeyPatch) -> None:
    """No call of sentencex gets more than a few thousand characters, whatever ends the sentences."""
    lengths = []
    split_really = sentences.sentencex.segment

    def measured(language: str, text: str) -> list[str]:
        lengths.append(len(text))
        return split_really(language, text)

    monkeypatch.setattr(sentences.sentencex, "segment", measured)
    for mark in ("。", "．", "｡", "。」", "！”", "!", "? "):
        assert len(split(f"很好{mark}" * 10_000, language="zh")) > 1
    assert max(lengths) <= 5_000
    assert sum(lengths) < 2 * 7 * 50_000


SPOKEN = [f"The clock struck {number}, and nobody came to the door." for number in range(1, 400)]


@pytest.mark.parametrize(
    "stray", ['a 12" board', "an “open quote", "an (open bracket", 'a "straight one', "a « stray one"]
)
def test_a_quote_that_stays_open_swallows_no_sentences(stray: str) -> None:
    """A book in one line, with a mark near its beginning that nothing closes, or only a mark far away."""
    for close in ("", '"', "”", ")", "»"):
        book = [f"He had {stray} with him.", *SPOKEN, f"This is the last one{close}."]
        assert split(" ".join(book)) == book


def test_the_mark_of_inches_does_not_turn_quotes_inside_out() -> None:
    """Speech is one sentence with its quotes; after a stray mark its ends were within the speech alone."""
    talk = ['"Who is there? Come in," she called.', "Nobody answered.", "She waited."] * 200
    book = ['The board was 12" long.', *talk]
    assert split(" ".join(book)) == book


def test_quotes_and_brackets_of_usual_length_stay_whole() -> None:
    speech = '"' + "It is late. " * 60 + 'Good night," said the old man and left.'
    notes = "(" + "See page one. " * 60 + "And more.) was written there."
    whole = [speech, f"A note {notes}"]
    assert 700 < len(speech) < 1000
    assert split(" ".join([*whole, *SPOKEN[:100]])) == [*whole, *SPOKEN[:100]]
    assert split(" ".join(whole)) == whole
    longer = '"' + "It is late. " * 200 + 'Good night," said the old man and left.'
    assert split(longer) == ['"It is late.', *["It is late."] * 199, 'Good night," said the old man and left.']


def test_a_long_line_has_the_sentences_of_its_parts_and_words_stay_whole() -> None:
    assert split(" ".join(SPOKEN)) == SPOKEN
    parts = split("word " * 5_000)
    assert len(parts) > 1
    assert " ".join(parts).split() == ["word"] * 5_000


def test_no_character_is_lost() -> None:
    nothing_lost(OWN_TEXT)


def test_no_character_of_wikipedia_is_lost(shared_data: Path) -> None:
    nothing_lost(shared_data / "enwiki" / "heldout.xz")


def nothing_lost(path: Path) -> None:
    settings = TextSettings()
    num_sentences = num_paragraphs = 0
    for document in islice(read_documents(path, settings), 60):
        parts = split_sentences(document, settings)
        assert "".join("".join(parts).split()) == "".join("".join(document.paragraphs).split()), document.location
        assert all(sentence == " ".join(sentence.split()) != "" for sentence in parts)
        num_sentences += len(parts)
        num_paragraphs += len(document.paragraphs)
    assert num_sentences > 2 * num_paragraphs
