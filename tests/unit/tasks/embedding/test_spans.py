"""Pairs of a corpus without labels: pieces of a passage, neighbours in the text, and texts that match themselves."""

from pathlib import Path

import numpy as np
import pytest

from bertwright.corpus.shards import Corpus
from bertwright.errors import InputError
from bertwright.tasks.embedding.pairs import TextPairs
from bertwright.tasks.embedding.read import read_vector_data
from bertwright.tasks.embedding.spans import _excerpt
from bertwright.tasks.embedding.spec import EMBED, VectorTask
from bertwright.tasks.spec import with_settings
from tests.support.vectors import write_corpus


@pytest.fixture(scope="module")
def spans_corpus(tmp_path_factory: pytest.TempPathFactory, own_tokenizer: Path) -> Path:
    return write_corpus(tmp_path_factory.mktemp("spans"), own_tokenizer)


def texts_of_documents(folder: Path) -> list[str]:
    """Return the text of each document, decoded sentence by sentence, without blanks and unknown tokens."""
    corpus = Corpus.open(folder)
    shard, start, length = corpus.locate(np.arange(corpus.num_sentences), np.ones(corpus.num_sentences, np.int32))
    sentences = [
        corpus.tokenizer.decode(corpus.views[s][begin : begin + size].tolist())
        for s, begin, size in zip(shard, start, length, strict=True)
    ]
    first = corpus.document_first()
    texts = [" ".join(sentences[first[row] : first[row + 1]]) for row in range(corpus.num_documents)]
    return [text.replace("[UNK]", "").replace(" ", "") for text in texts]


def sides(pairs: TextPairs) -> list[tuple[str, str]]:
    return [
        (pairs.firsts[anchor], pairs.seconds[positive])
        for anchor, positive in zip(pairs.anchors, pairs.positives, strict=True)
    ]


def test_two_pieces_lie_in_one_passage(spans_corpus: Path) -> None:
    data = read_vector_data(with_settings(EMBED, ["pairs=200", "spans=overlap"]), spans_corpus)
    texts = texts_of_documents(spans_corpus)
    assert len(data.train) > 50
    for pair in sides(data.train):
        first, second = (piece.replace(" ", "") for piece in pair)
        assert any(first in text and second in text for text in texts)
        assert first != second
        assert all(len(piece.split()) >= 3 for piece in pair)
    passages = read_vector_data(with_settings(EMBED, ["pairs=200", "spans=next"]), spans_corpus)
    longest = max(len(f"{first} {second}".split()) for first, second in sides(passages.train))
    assert max(len(piece.split()) for pair in sides(data.train) for piece in pair) <= round(0.8 * longest)


def test_pieces_of_a_passage_have_their_own_temperature(spans_corpus: Path) -> None:
    def divisor(*settings: str) -> float:
        task: VectorTask = read_vector_data(with_settings(EMBED, ["pairs=20", *settings]), spans_corpus).task
        return task.divisor

    assert divisor() == divisor("spans=overlap") == 0.03
    assert (divisor("spans=next"), divisor("temperature=0.1")) == (0.05, 0.1)


def test_a_script_without_blanks_is_cut_between_characters() -> None:
    passage = "".join(chr(0x4E00 + number) for number in range(40))
    random = np.random.default_rng(0)
    pieces = [_excerpt(passage, random) for _ in range(50)]
    assert all(piece in passage and 8 <= len(piece) <= 32 for piece in pieces)
    assert len(set(pieces)) > 40


def test_the_second_span_follows_the_first_in_its_document(spans_corpus: Path) -> None:
    data = read_vector_data(with_settings(EMBED, ["spans=next"]), spans_corpus)
    texts = texts_of_documents(spans_corpus)
    documents_of = {}
    for name, pairs in (("train", data.train), ("dev", data.validation["dev"])):
        assert pairs.alike
        joined = [(first + second).replace(" ", "") for first, second in sides(pairs)]
        documents_of[name] = {row for span in joined for row, text in enumerate(texts) if span in text}
        assert all(any(span in text for text in texts) for span in joined)
    assert len(documents_of["dev"]) == 4
    assert not documents_of["train"] & documents_of["dev"]


def test_twins_are_trained_and_neighbours_are_measured(spans_corpus: Path) -> None:
    data = read_vector_data(with_settings(EMBED, ["spans=twins", "pairs=20"]), spans_corpus)
    assert (data.train.twins, len(data.train)) == (True, 20)
    assert all(first == second for first, second in sides(data.train))
    assert all(first != second for first, second in sides(data.validation["dev"]))


def test_the_pairs_of_a_corpus_are_always_the_same(spans_corpus: Path) -> None:
    first, again = (read_vector_data(with_settings(EMBED, ["pairs=30"]), spans_corpus) for _ in range(2))
    assert sides(first.train) == sides(again.train)
    assert first.digests == again.digests == {"train": Corpus.open(spans_corpus).fingerprint, "dev": {}}


def test_a_corpus_of_one_document_has_no_validation(tmp_path: Path, own_tokenizer: Path) -> None:
    corpus = write_corpus(tmp_path, own_tokenizer, count=1)
    with pytest.raises(InputError, match="expected two documents with two sentences each, found 1"):
        read_vector_data(EMBED, corpus)
