import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bertwright.corpus import encode
from bertwright.corpus.encode import MAX_SENTENCE, WordTable, encode_documents, token_dtype
from bertwright.text.vocabulary import SPECIAL, Rules
from bertwright.text.wordpiece import Tokenizer

LETTERS = "abeinou\u00e9\u0301\u03c3\u03c2\u0131\ud55c\u1112\u1161\u11ab\u304b\u3099\u4e2d"
PIECES = [*SPECIAL, *LETTERS, *("##" + c for c in LETTERS), *".,!()[]-'\u2014\u00b0", "un", "##ion", "bean"]
RULES = [Rules(cased=cased, strip_accents=strip, longest_word=9) for cased in (True, False) for strip in (True, False)]
TOKENIZERS = [Tokenizer(PIECES, rules) for rules in RULES]
# Characters whose treatment could depend on their neighbours: marks, final sigma, dotted I, jamo, controls, odd spaces.
AWKWARD = LETTERS + "ABE\u03a3\u0130\u00c9 .,!()[]{}-'\"_#@$\u2014\u2019\u20ac\u00b0"
AWKWARD += "\u00a0\u3000\t\n\r\x1c\x85\u200b\u00ad\x00\ufffd\U0001f600"
awkward = st.lists(st.text(AWKWARD, max_size=30) | st.sampled_from([*SPECIAL, "un union bean", ""]), max_size=5)


@settings(max_examples=150, deadline=None)
@given(calls=st.lists(awkward, min_size=1, max_size=3), which=st.sampled_from(range(4)), small=st.booleans())
@example(calls=[["a\u0301b .\u0301 =\u0338\u0301"], ["\u039f\u03a3. \u03a3 \u03a3,"]], which=2, small=True)
def test_words_looked_up_are_the_words_tokenized(calls: list[list[str]], which: int, small: bool) -> None:
    tokenizer = TOKENIZERS[which]
    with pytest.MonkeyPatch.context() as patch:
        if small:  # the table is emptied between the calls
            patch.setattr(encode, "TABLE_BYTES", 100)
            patch.setattr(encode, "WORDS_PER_CALL", 2)
        table = WordTable(tokenizer.ids, vocab_size=tokenizer.vocab_size)
        for sentences in calls:
            expected = tokenizer.ids(sentences)
            ids, lengths = table.ids(sentences)
            assert lengths.tolist() == [len(row) for row in expected]
            assert ids.tolist() == [id for row in expected for id in row]
            assert ids.dtype == np.uint16


def test_a_word_is_tokenized_once() -> None:
    seen: list[str] = []

    def tokenize(words: Sequence[str]) -> list[list[int]]:
        seen.extend(words)
        return [[len(word)] for word in words]

    table = WordTable(tokenize, vocab_size=10)
    table.ids(["one two two", "two three"])
    table.ids(["three one. four."])
    assert sorted(seen) == ["", ".", "four", "one", "three", "two"]


def encode_counted(lengths: list[list[int]]) -> encode.EncodedDocuments:
    """Encode documents whose sentences have so many tokens, numbered through."""
    numbers = iter(range(1, 60_000))
    documents = [[" ".join(str(next(numbers)) for _ in range(n)) for n in document] for document in lengths]
    table = WordTable(lambda words: [[int(word)] if word else [] for word in words], vocab_size=65_536)
    return encode_documents(documents, table)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.integers(0, 5) | st.integers(0, 700), max_size=4), max_size=5))
def test_sentences_are_kept_cut_or_dropped(lengths: list[list[int]]) -> None:
    result = encode_counted(lengths)
    assert result.ids.tolist() == list(range(1, 1 + sum(map(sum, lengths))))  # no token lost, added or moved
    spans = np.diff(result.sentence_first).tolist()
    expected = []
    for document in lengths:
        cut = []
        for n in document:
            pieces = -(-n // MAX_SENTENCE)
            at = len(cut) + sum(map(len, expected))
            cut += spans[at : at + pieces]
            assert sum(spans[at : at + pieces]) == n
            assert pieces < 2 or max(spans[at : at + pieces]) - min(spans[at : at + pieces]) <= 1
        if cut:
            expected.append(cut)
    assert spans == [span for cut in expected for span in cut]
    assert np.diff(result.document_first).tolist() == [len(cut) for cut in expected]
    assert all(1 <= span <= MAX_SENTENCE for span in spans)
    assert result.dropped == len(lengths) - len(expected)


def test_a_run_without_a_boundary_becomes_equal_spans() -> None:
    assert np.diff(encode_counted([[3, 300]]).sentence_first).tolist() == [3, 100, 100, 100]
    assert np.diff(encode_counted([[128], [129]]).sentence_first).tolist() == [128, 64, 65]


def test_nothing_gives_nothing() -> None:
    result = encode_counted([[], [0, 0]])
    assert (len(result.ids), result.sentence_first.tolist(), result.document_first.tolist()) == (0, [0], [0])
    assert result.dropped == 2


@pytest.mark.parametrize(("size", "dtype"), [(65_536, "uint16"), (65_537, "uint32")])
def test_the_dtype_holds_the_last_id(size: int, dtype: str) -> None:
    assert token_dtype(size) == np.dtype(dtype)
    assert np.iinfo(token_dtype(size)).max >= size - 1


def test_building_needs_no_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import bertwright.corpus.build, bertwright.corpus.checks, bertwright.text.sentences\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_worker_starts_without_arrow() -> None:
    # Each worker would pay its import in time and memory.
    code = "import sys, bertwright.corpus.encode; assert not {'pyarrow', 'torch', 'numba'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
