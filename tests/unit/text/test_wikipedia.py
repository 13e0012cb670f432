"""MediaWiki dumps: which pages are articles, what of them is text, and what is refused."""

import bz2
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from bertwright.corpus.build import build_corpus
from bertwright.corpus.shards import Corpus
from bertwright.errors import InputError
from bertwright.text.document import TextSettings
from bertwright.text.documents import read_documents
from bertwright.text.wikipedia import LARGEST_PAGE
from bertwright.text.wordpiece import train_wordpiece

DUMP = Path(__file__).resolve().parents[2] / "fixtures" / "own_dump.xml"
ALDERMERE = (
    "Aldermere (Aldera) is a town on the Lorne coast. It has 1,234 people.",
    "It was founded in 1203 by monks and nuns.",
    "The walls were torn down in the great storm, says the chronicle. The stones became houses.",
    "Water is H2O, and nothing else matters here.",
)
LIGHTHOUSE = ("등대는 바다를 비추는 탑이다.",)


def multistream(data: bytes) -> bytes:
    """As Wikipedia's own: many archives one after the other in one file."""
    return b"".join(bz2.compress(data[begin : begin + 500]) for begin in range(0, len(data), 500))


@pytest.mark.parametrize(("suffix", "packed"), [("", bytes), (".bz2", bz2.compress), (".bz2", multistream)])
def test_articles_are_text_alone(tmp_path: Path, suffix: str, packed: Callable[[bytes], bytes]) -> None:
    path = tmp_path / f"dump.xml{suffix}"
    path.write_bytes(packed(DUMP.read_bytes()))
    documents = list(read_documents(path, TextSettings()))
    assert [document.paragraphs for document in documents] == [ALDERMERE, LIGHTHOUSE]
    assert [document.location for document in documents] == [f"{path}: page 1 'Aldermere'", f"{path}: page 7 '등대'"]


@pytest.mark.parametrize(
    ("markup", "kept"),
    [
        ("{{Begriffsklärung}}", False),
        ("{{Begriffsklärungshinweis}}", True),
        ("{{Disambiguation|geo}}", False),
        ("{{Human name disambiguation}}", False),
        ("{{disambiguation needed|date=May 2020}}", True),
        ("#पुनर्प्रेषित [[Aldermere]]", False),
    ],
)
def test_notes_about_disambiguation_drop_no_article(tmp_path: Path, markup: str, kept: bool) -> None:
    path = tmp_path / "dump.xml"
    page = f"<page><title>A</title><ns>0</ns><id>1</id><revision><text>{markup}\nA town.</text></revision></page>"
    path.write_text(f"<mediawiki>{page}</mediawiki>", encoding="utf-8")
    assert len(list(read_documents(path, TextSettings()))) == kept


def test_workers_change_no_byte(tmp_path: Path) -> None:
    texts = (line for document in read_documents(DUMP, TextSettings()) for line in document.paragraphs)
    train_wordpiece(texts, vocab_size=120).save(tmp_path / "tok")
    for workers in (1, 2):
        build_corpus([DUMP], tokenizer=tmp_path / "tok", out=tmp_path / f"corpus-{workers}", workers=workers)
    corpora = [Corpus.open(tmp_path / f"corpus-{workers}") for workers in (1, 2)]
    assert corpora[0].fingerprint == corpora[1].fingerprint
    assert corpora[0].manifest.documents == 2
    assert corpora[0].manifest.dropped_documents == 1  # the page of lists alone


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data[: data.index(b"walls were")], r"cut short.*before its first page"),
        (lambda data: data[:-40], r"cut short.*after page 6"),
        (lambda data: data.replace(b"<mediawiki", b"<!DOCTYPE m [<!ENTITY a 'b'>]><mediawiki", 1), "document type"),
        (
            lambda data: b"<?xml version='1.0'?>" + data.replace(b"mediawiki", b"catalogue"),
            "first element is <catalogue>",
        ),
        (
            lambda data: data.replace(b"An older", b"x" * (LARGEST_PAGE + 200_000), 1),
            "pages of at most 20 MB and 100,000 elements, got a larger one after page 6",
        ),
    ],
)
def test_what_is_refused(tmp_path: Path, change: Callable[[bytes], bytes], message: str) -> None:
    path = tmp_path / "dump.xml"
    path.write_bytes(change(DUMP.read_bytes()))
    with pytest.raises(InputError, match=f"(?s){re.escape(str(path))}.*{message}"):
        list(read_documents(path, TextSettings()))


def test_a_truncated_archive_is_named(tmp_path: Path) -> None:
    path = tmp_path / "dump.xml.bz2"
    path.write_bytes(bz2.compress(DUMP.read_bytes())[:-60])
    with pytest.raises(InputError, match=r"dump\.xml\.bz2.*broken or cut short"):
        list(read_documents(path, TextSettings()))
