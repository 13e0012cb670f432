import json
import statistics
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertwright.corpus import checks as report
from bertwright.corpus.checks import CorpusReport, inspect_corpus, sentence_hashes
from bertwright.corpus.encode import EncodedDocuments, offsets_of
from bertwright.corpus.writer import CorpusWriter
from bertwright.text.vocabulary import SPECIAL, Rules
from bertwright.text.wordpiece import Tokenizer

Document = list[list[int]]
TOKENIZER = Tokenizer([*SPECIAL, *"abcdefghij"], Rules(cased=False, strip_accents=False))
UNKNOWN = TOKENIZER.unk_id
WARNINGS = {
    "one document": "expected at least two documents",
    "one sentence": "are one sentence",
    "unknown": r"tokens are [UNK]",
    "repeated": "copies of earlier ones",
    "little": "too little text",
}


def inspected(folder: Path, documents: list[Document], *, dropped: int = 0) -> CorpusReport:
    """Write a corpus of two record batches and two shards, and inspect it."""
    half = (len(documents) + 1) // 2
    with CorpusWriter(folder, tokenizer=TOKENIZER, shard_tokens=1) as writer:
        for batch in (documents[:half], documents[half:]):
            sentences = list(chain.from_iterable(batch))
            writer.add(
                EncodedDocuments(
                    ids=np.array(list(chain.from_iterable(sentences)), np.uint16),
                    sentence_first=offsets_of(np.array([len(sentence) for sentence in sentences], np.int64)),
                    document_first=offsets_of(np.array([len(document) for document in batch], np.int64)),
                )
            )
        writer.finish(text={}, sources=(), dropped=dropped)
    return inspect_corpus(folder)


def warned(result: CorpusReport) -> set[str]:
    names = {name for name, words in WARNINGS.items() if any(words in warning for warning in result.warnings)}
    assert len(names) == len(result.warnings)
    return names


def healthy_documents(documents: int = 40) -> list[Document]:
    random = np.random.default_rng(0)
    return [
        [random.integers(5, 15, size=random.integers(8, 20)).tolist() for _ in range(random.integers(2, 9))]
        for _ in range(documents)
    ]


def brute(lengths: list[int]) -> dict[str, Any]:
    counts = Counter(length.bit_length() - 1 for length in lengths)
    return {
        "counts": tuple(counts[power] for power in range(max(counts) + 1)),
        "mean": pytest.approx(statistics.fmean(lengths)),
        "median": statistics.median_low(lengths),
        "largest": max(lengths),
    }


@settings(max_examples=15, deadline=None)
@given(
    documents=st.lists(
        st.lists(st.lists(st.integers(1, 8), min_size=1, max_size=9), min_size=1, max_size=5), min_size=1, max_size=12
    )
)
def test_figures_are_those_of_a_plain_count(
    tmp_path_factory: pytest.TempPathFactory, documents: list[Document]
) -> None:
    result = inspected(tmp_path_factory.mktemp("corpus"), documents, dropped=3)
    sentences = list(chain.from_iterable(documents))
    tokens = list(chain.from_iterable(sentences))
    assert (result.documents, result.sentences, result.tokens) == (len(documents), len(sentences), len(tokens))
    assert result.dropped_documents == 3
    assert result.sentence_tokens.model_dump() == brute([len(sentence) for sentence in sentences])
    assert result.document_sentences.model_dump() == brute([len(document) for document in documents])
    assert result.document_tokens.model_dump() == brute([sum(map(len, document)) for document in documents])
    assert result.unknown_share == pytest.approx(tokens.count(UNKNOWN) / len(tokens))
    assert result.pieces_used == len(set(tokens))
    assert result.single_sentence_share == pytest.approx(sum(len(d) == 1 for d in documents) / len(documents))
    long = Counter(tuple(sentence) for sentence in sentences if len(sentence) >= report.REPEAT_LENGTH)
    assert result.repeated_share == pytest.approx(1 - len(long) / max(long.total(), 1) if long else 0)
    repeated = [(entry.times, entry.text) for entry in result.repeated]
    assert [times for times, _ in repeated] == sorted((n for n in long.values() if n > 1), reverse=True)[
        : len(repeated)
    ]
    assert all(times in {n for s, n in long.items() if TOKENIZER.decode(s) == text} for times, text in repeated)
    assert result.sample[0][0] == TOKENIZER.decode(sentences[0])
    assert json.loads(json.dumps(result.model_dump(mode="json")))["tokens"] == len(tokens)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 1) | st.integers(0, 2**32 - 1), min_size=1, max_size=4), min_size=1, max_size=30),
    st.sampled_from([np.uint16, np.uint32]),
)
def test_sentences_hash_alike_exactly_where_they_are_alike(sentences: list[list[int]], dtype: type) -> None:
    tokens = np.array(list(chain.from_iterable(sentences)), np.uint64).astype(dtype)
    lengths = np.array([len(sentence) for sentence in sentences], np.int32)
    hashes = sentence_hashes(tokens, lengths).tolist()
    contents = [tuple(part.tolist()) for part in np.split(tokens, np.cumsum(lengths)[:-1])]
    for first, one in enumerate(contents):
        for second, other in enumerate(contents):
            assert (hashes[first] == hashes[second]) == (one == other)


def test_with_few_hashes_all_copies_of_a_sentence_stay_or_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = healthy_documents(60)
    monkeypatch.setattr(report, "MAX_HASHES", 40)
    monkeypatch.setattr(report, "_TOP_REPEATS", 1000)
    result = inspected(tmp_path, documents * 3)
    assert 1 <= len(result.repeated) <= 40 / 3
    assert {entry.times for entry in result.repeated} == {3}
    assert result.repeated_share == pytest.approx(2 / 3)


def test_a_healthy_corpus_is_not_warned_of(tmp_path: Path) -> None:
    assert warned(inspected(tmp_path, healthy_documents())) == set()


@pytest.mark.parametrize(
    ("documents", "expected"),
    [
        ([[sentence] for document in healthy_documents() for sentence in document], {"one sentence"}),
        ([list(chain.from_iterable(healthy_documents()))], {"one document"}),
        ([[[UNKNOWN, *s] for s in document] for document in healthy_documents()], {"unknown"}),
        (healthy_documents() + healthy_documents()[:10], {"repeated"}),
        (healthy_documents(4), {"little"}),
    ],
    ids=["shuffled", "boundaries lost", "foreign script", "duplicates", "tiny"],
)
def test_each_fault_has_its_warning(tmp_path: Path, documents: list[Document], expected: set[str]) -> None:
    assert warned(inspected(tmp_path, documents)) == expected


def test_headings_that_recur_are_no_repeats(tmp_path: Path) -> None:
    result = inspected(tmp_path, [[[5, 6, 7], *document] for document in healthy_documents()])
    assert result.repeated_share == 0
    assert warned(result) == set()


def test_the_report_reads_as_text(tmp_path: Path) -> None:
    documents = healthy_documents()
    text = inspected(tmp_path, [*documents, documents[0][:2]], dropped=7).render()
    sentences = [*chain.from_iterable(documents), *documents[0][:2]]
    assert f"{sum(map(len, sentences)):,}" in text
    assert "7 without text" in text
    assert TOKENIZER.decode(documents[0][0]) in text
    assert "2 times: " in text
    assert all(len(line.split("█")[0]) < 80 for line in text.splitlines() if "█" in line)
    assert "warning" not in text
    tiny = inspected(tmp_path / "tiny", [[[5]]])
    assert tiny.render().count("warning: ") == len(tiny.warnings) == 3


def test_middle_lengths_of_a_histogram_are_on_their_side() -> None:
    lengths = np.array([1, 2, 3, 4, 7, 8, 255, 256], np.int32)
    assert report._histogram(lengths).counts == (1, 2, 2, 1, 0, 0, 0, 1, 1)
