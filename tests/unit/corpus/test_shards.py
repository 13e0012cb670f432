import hashlib
import pickle
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertwright.corpus.checks import verify
from bertwright.corpus.encode import EncodedDocuments, offsets_of, token_dtype
from bertwright.corpus.manifest import Manifest, corpus_fingerprint, read_manifest
from bertwright.corpus.shards import Corpus
from bertwright.corpus.writer import CorpusWriter
from bertwright.errors import InputError
from bertwright.files import read_json, write_json
from bertwright.text.vocabulary import SPECIAL, Rules
from bertwright.text.wordpiece import Tokenizer

Document = list[list[int]]
DOCUMENTS: list[Document] = [[[5, 6, 7], [8]], [[9] * 40], [[10, 11], [12], [5, 5]], [[6, 7, 8, 9]]]
SMALL = Tokenizer([*SPECIAL, *"abcdefghij"], Rules(cased=False, strip_accents=False))
LARGE = Tokenizer([*SPECIAL, *(f"w{i}" for i in range(70_000))], Rules(cased=False, strip_accents=False))


def encoded_documents(documents: list[Document], vocab_size: int) -> EncodedDocuments:
    sentences = [sentence for document in documents for sentence in document]
    return EncodedDocuments(
        ids=np.array([id for sentence in sentences for id in sentence], token_dtype(vocab_size)),
        sentence_first=offsets_of(np.array([len(sentence) for sentence in sentences], np.int64)),
        document_first=offsets_of(np.array([len(document) for document in documents], np.int64)),
    )


def write_shards(
    folder: Path, batches: list[list[Document]], *, tokenizer: Tokenizer = SMALL, shard_tokens: int = 1 << 60
) -> Manifest:
    folder.mkdir(exist_ok=True)
    with CorpusWriter(folder, tokenizer=tokenizer, shard_tokens=shard_tokens) as writer:
        for batch in batches:
            writer.add(encoded_documents(batch, tokenizer.vocab_size))
        return writer.finish(text={"language": "en"}, sources=(), dropped=0)


def read_back(corpus: Corpus, first: int, count: int) -> list[int]:
    shard, start, length = corpus.locate(np.array([first]), np.array([count], np.int32))
    return corpus.views[shard[0]][start[0] : start[0] + length[0]].tolist()


class NoTokenizer:
    """As much of a tokenizer as writing needs, without its files: hypothesis writes many corpora."""

    hash = "0" * 64

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def save(self, folder: Path) -> None:
        pass


sentences = st.lists(st.integers(0, 999), min_size=1, max_size=6)
batch_lists = st.lists(
    st.lists(st.lists(sentences, min_size=1, max_size=5), max_size=4), min_size=1, max_size=6
).filter(any)


@settings(max_examples=60, deadline=None)
@given(batches=batch_lists, shard_tokens=st.integers(1, 60), vocab_size=st.sampled_from([1000, 65_536, 65_537]))
def test_a_corpus_gives_back_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[Document]], shard_tokens: int, vocab_size: int
) -> None:
    folder = tmp_path_factory.mktemp("corpus")
    tokenizer: Any = NoTokenizer(vocab_size)
    manifest = write_shards(folder, batches, tokenizer=tokenizer, shard_tokens=shard_tokens)
    corpus = Corpus.open(folder)
    documents = [document for batch in batches for document in batch]
    flat = [sentence for document in documents for sentence in document]

    assert {view.dtype for view in corpus.views} == {np.dtype("uint32" if vocab_size > 65_536 else "uint16")}
    assert (corpus.num_documents, corpus.num_sentences) == (len(documents), len(flat))
    assert corpus.num_tokens == sum(map(len, flat)) == sum(shard.tokens for shard in manifest.shards)
    assert all(shard.tokens >= shard_tokens for shard in manifest.shards[:-1])
    first = corpus.document_first()
    assert first.dtype == np.int64
    assert np.diff(first).tolist() == [len(document) for document in documents]
    assert corpus.sentence_lengths().tolist() == [len(sentence) for sentence in flat]
    assert [id for _, tokens in corpus.blocks() for id in tokens.tolist()] == [id for s in flat for id in s]
    assert [part.stop for part, _ in corpus.blocks()][-1] == len(flat)

    runs = [
        (first[d] + begin, end - begin)
        for d, document in enumerate(documents)
        for begin in range(len(document))
        for end in range(begin, len(document) + 1)
    ]
    begins, counts = np.array(runs, np.int64).T
    shard, start, length = corpus.locate(begins, counts.astype(np.int32))
    assert (shard.dtype, start.dtype, length.dtype) == (np.int32, np.int64, np.int32)
    for row, (begin, count) in enumerate(runs):
        expected = [id for sentence in flat[begin : begin + count] for id in sentence]
        assert corpus.views[shard[row]][start[row] : start[row] + length[row]].tolist() == expected


def test_locate_takes_no_rows(tmp_path: Path) -> None:
    write_shards(tmp_path, [DOCUMENTS])
    parts = Corpus.open(tmp_path).locate(np.empty(0, np.int64), np.empty(0, np.int32))
    assert [len(part) for part in parts] == [0, 0, 0]


def test_a_large_vocabulary_keeps_its_large_ids(tmp_path: Path) -> None:
    write_shards(tmp_path, [[[[70_004, 3], [65_536]]]], tokenizer=LARGE)
    corpus = verify(tmp_path)
    assert read_back(corpus, 0, 2) == [70_004, 3, 65_536]
    assert corpus.tokenizer.hash == LARGE.hash


def test_views_lie_over_the_file_itself(tmp_path: Path) -> None:
    write_shards(tmp_path, [DOCUMENTS])
    corpus = Corpus.open(tmp_path)
    shard, start, _ = corpus.locate(np.array([0]), np.array([1], np.int32))
    assert read_back(corpus, 0, 1) == [5, 6, 7]
    assert not corpus.views[0].flags.writeable
    with (tmp_path / "shard-00000.arrow").open("r+b") as stream:
        stream.seek(int(start[0]) * 2)
        assert stream.read(2) == b"\x05\x00"
        stream.seek(int(start[0]) * 2)
        stream.write(b"\x0e\x00")
    # A copy made at opening would still say 5.
    assert read_back(corpus, 0, 1) == [14, 6, 7]
    assert corpus.views[shard[0]].nbytes == (tmp_path / "shard-00000.arrow").stat().st_size


def test_shards_are_plain_arrow_streams(tmp_path: Path) -> None:
    manifest = write_shards(tmp_path, [DOCUMENTS[:2], DOCUMENTS[2:]])
    table = pa.ipc.open_stream(tmp_path / "shard-00000.arrow").read_all()
    assert table.column("document").to_pylist() == DOCUMENTS
    assert table.schema.field("document").type == pa.large_list(pa.large_list(pa.uint16()))
    assert manifest.tokenizer.encode() in table.schema.metadata.values()


def test_shards_open_unchanged_in_datasets(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="the package 'datasets' is not installed")
    write_shards(tmp_path, [DOCUMENTS[:2], DOCUMENTS[2:]])
    assert datasets.Dataset.from_file(str(tmp_path / "shard-00000.arrow"))["document"][:] == DOCUMENTS


def test_a_pickled_corpus_is_opened_again(tmp_path: Path) -> None:
    write_shards(tmp_path, [[[[5] * 100] * 1000]])
    data = pickle.dumps(Corpus.open(tmp_path))
    assert len(data) < 1000
    assert read_back(pickle.loads(data), 999, 1) == [5] * 100


def test_equal_tokens_and_tokenizer_make_an_equal_fingerprint(tmp_path: Path) -> None:
    one, two = write_shards(tmp_path / "a", [DOCUMENTS]), write_shards(tmp_path / "b", [DOCUMENTS])
    other = write_shards(tmp_path / "c", [DOCUMENTS[1:]])
    assert one == two
    assert one.fingerprint != other.fingerprint
    assert Corpus.open(tmp_path / "a").fingerprint == one.fingerprint


@pytest.mark.parametrize("change", [-1, 8])
def test_a_shard_of_another_size_is_named_with_both_sizes(tmp_path: Path, change: int) -> None:
    manifest = write_shards(tmp_path, [DOCUMENTS])
    path = tmp_path / "shard-00000.arrow"
    size = manifest.shards[0].bytes
    data = path.read_bytes()
    path.write_bytes(data[:change] if change < 0 else data + b"\0" * change)
    for check in (Corpus.open, verify):
        with pytest.raises(InputError, match=rf"shard-00000\.arrow: .*{size + change:,} bytes.*{size:,}"):
            check(tmp_path)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    write_shards(tmp_path, [DOCUMENTS[:2], DOCUMENTS[2:]], shard_tokens=1)
    (tmp_path / "shard-00001.arrow").unlink()
    with pytest.raises(InputError, match=r"shard-00001\.arrow: this file of the corpus is missing"):
        Corpus.open(tmp_path)


def test_a_flipped_bit_is_found_wherever_it_lies(tmp_path: Path) -> None:
    write_shards(tmp_path, [DOCUMENTS])
    path = tmp_path / "shard-00000.arrow"
    data = path.read_bytes()
    verify(tmp_path)
    for position in range(0, len(data), 7):  # the layout repeats every 8 bytes
        path.write_bytes(data[:position] + bytes([data[position] ^ 0x10]) + data[position + 1 :])
        with pytest.raises(InputError, match=r"shard-00000\.arrow: expected the sha256"):
            verify(tmp_path)
        with suppress(InputError):  # cheap opening may overlook it, but never fails in another way
            Corpus.open(tmp_path)


def test_changed_tokens_are_found_when_their_batch_is_first_read(tmp_path: Path) -> None:
    write_shards(tmp_path, [[[[5] * 50]], [[[6] * 50]], [[[7] * 50]]])
    path = tmp_path / "shard-00000.arrow"
    data = path.read_bytes()
    at = data.index(bytes([6, 0] * 50)) + 40
    path.write_bytes(data[:at] + b"\7" + data[at + 1 :])
    corpus = Corpus.open(tmp_path)
    assert corpus.sentence_lengths().tolist() == [50] * 3
    assert read_back(corpus, 0, 1) == [5] * 50
    assert read_back(corpus, 2, 1) == [7] * 50
    with pytest.raises(InputError, match=r"shard-00000\.arrow: record batch 1: its tokens were changed .*CRC-32"):
        read_back(corpus, 1, 1)
    with pytest.raises(InputError, match="record batch 1: its tokens"):
        list(corpus.blocks())


def test_changed_offsets_are_found_when_they_are_first_read(tmp_path: Path) -> None:
    write_shards(tmp_path, [[[[5] * 50]], [[[6] * 30, [8] * 20]], [[[7] * 50]]])
    path = tmp_path / "shard-00000.arrow"
    data = path.read_bytes()
    at = data.index(np.array([0, 30, 50], np.int64).tobytes()) + 8
    path.write_bytes(data[:at] + bytes([31]) + data[at + 1 :])
    for read in (Corpus.sentence_lengths, Corpus.document_first, lambda corpus: read_back(corpus, 1, 1)):
        with pytest.raises(InputError, match="record batch 1: its offsets were changed"):
            read(Corpus.open(tmp_path))
    assert read_back(Corpus.open(tmp_path), 0, 1) == [5] * 50


def test_verify_reads_the_hashes_and_the_drop_list(tmp_path: Path) -> None:
    manifest = write_shards(tmp_path, [DOCUMENTS, DOCUMENTS[:1]])
    assert manifest.duplicates is not None
    assert manifest.duplicates.documents == 1
    for name, harm, message in (
        ("shard-00000.hashes", lambda data: bytes([data[0] ^ 1]) + data[1:], "sha256"),
        ("shard-00000.hashes", lambda data: None, "missing"),
        ("duplicates.i8", lambda data: bytes([data[0] ^ 1]) + data[1:], "was changed"),
        ("duplicates.i8", lambda data: b"", "truncated"),
    ):
        path = tmp_path / name
        data = path.read_bytes()
        if (harmed := harm(data)) is None:
            path.unlink()
        else:
            path.write_bytes(harmed)
        with pytest.raises(InputError, match=rf"{re.escape(name)}: .*{message}"):
            verify(tmp_path)
        path.write_bytes(data)
    verify(tmp_path)


def test_a_flipped_byte_of_any_file_is_found(tmp_path: Path) -> None:
    manifest = write_shards(tmp_path, [DOCUMENTS, DOCUMENTS[:1]])
    assert verify(tmp_path).manifest == manifest == read_manifest(tmp_path)
    files = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    names = {"duplicates.i8", "manifest.json", "shard-00000.arrow", "shard-00000.hashes"}
    names |= {"tokenizer.json", "tokenizer_config.json", "vocab.txt"}
    assert {path.name for path in files} == names
    for path in files:
        data = path.read_bytes()
        for position in {*range(0, len(data), 13), *range(len(data) - 3, len(data))}:
            for bits in (0x01, 0x20, 0x2A):  # the last makes a blank of a line's end, which JSON does not see
                path.write_bytes(data[:position] + bytes([data[position] ^ bits]) + data[position + 1 :])
                with pytest.raises(InputError, match=re.escape(str(tmp_path))):
                    verify(tmp_path)
        path.write_bytes(data)
        verify(tmp_path)


@pytest.mark.parametrize("name", ["digest", "tokenizer_files"])
def test_a_manifest_without_digests_is_refused(tmp_path: Path, name: str) -> None:
    manifest = write_shards(tmp_path, [DOCUMENTS]).model_dump(mode="json")
    del manifest[name]
    write_json(tmp_path / "manifest.json", manifest)
    with pytest.raises(InputError, match=rf"manifest\.json: {name}: Field required .*build older ones again"):
        Corpus.open(tmp_path)


@pytest.mark.parametrize("name", ["../manifest.json", "/etc/hostname", "..", ""])
def test_verify_reads_no_file_outside_of_the_tokenizer(tmp_path: Path, name: str) -> None:
    manifest = write_shards(tmp_path, [DOCUMENTS]).model_dump(mode="json")
    manifest |= {"tokenizer_files": {name: "0" * 64}, "digest": ""}
    write_json(tmp_path / "manifest.json", manifest)
    digest = hashlib.sha256((tmp_path / "manifest.json").read_bytes()).hexdigest()
    write_json(tmp_path / "manifest.json", {**manifest, "digest": digest})
    with pytest.raises(InputError, match=r"manifest\.json: .*expected the name of a file in tokenizer/|is missing"):
        verify(tmp_path)


def test_verify_finds_ids_outside_of_the_vocabulary(tmp_path: Path) -> None:
    write_shards(tmp_path, [[[[5, SMALL.vocab_size]]]])
    with pytest.raises(InputError, match=r"shard-00000\.arrow: token id 15, .* 15 pieces"):
        verify(tmp_path)


def test_a_foreign_tokenizer_is_refused(tmp_path: Path) -> None:
    write_shards(tmp_path, [DOCUMENTS])
    shutil.rmtree(tmp_path / "tokenizer")
    Tokenizer([*SPECIAL, *"jihgfedcba"], Rules(cased=False, strip_accents=False)).save(tmp_path / "tokenizer")
    with pytest.raises(InputError, match=r"tokenizer: expected the tokenizer that made the corpus"):
        _ = Corpus.open(tmp_path).tokenizer
    with pytest.raises(InputError, match="expected the tokenizer that made the corpus"):
        verify(tmp_path)


def test_a_shard_of_another_tokenizer_is_refused(tmp_path: Path) -> None:
    cased = Tokenizer(SMALL.pieces, Rules(cased=True, strip_accents=False))
    write_shards(tmp_path / "a", [DOCUMENTS])
    other = write_shards(tmp_path / "b", [DOCUMENTS], tokenizer=cased)
    shutil.copy(tmp_path / "b" / "shard-00000.arrow", tmp_path / "a")
    manifest = read_json(tmp_path / "a" / "manifest.json")
    manifest["shards"][0]["sha256"] = other.shards[0].sha256
    manifest["fingerprint"] = corpus_fingerprint(manifest["tokenizer"], other.shards, None)
    write_json(tmp_path / "a" / "manifest.json", manifest)
    with pytest.raises(InputError, match=r"shard-00000\.arrow: expected the tokenizer and layout of"):
        Corpus.open(tmp_path / "a")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 1}, "format: "),
        ({"unknown": 1}, "unknown: "),
        ({"shards": []}, "no shards"),
        ({"tokenizer": "f" * 64}, "fingerprint"),
        ({"tokens": 56}, "tokens is not the sum"),
    ],
)
def test_a_changed_manifest_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    write_shards(tmp_path, [DOCUMENTS])
    path = tmp_path / "manifest.json"
    write_json(path, read_json(path) | change)
    with pytest.raises(InputError, match=rf"manifest\.json: .*{message}"):
        Corpus.open(tmp_path)


def test_counts_that_are_not_those_of_the_shard_are_refused(tmp_path: Path) -> None:
    write_shards(tmp_path, [DOCUMENTS])
    manifest = read_json(tmp_path / "manifest.json")
    manifest["documents"] = manifest["shards"][0]["documents"] = 5
    write_json(tmp_path / "manifest.json", manifest)
    with pytest.raises(InputError, match="4 documents and 7 sentences, but 5 and 7 in the manifest"):
        Corpus.open(tmp_path)


def test_a_folder_without_manifest_is_no_corpus(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"not a corpus.*bertwright corpus build"):
        Corpus.open(tmp_path)


def test_a_compressed_stream_is_refused(tmp_path: Path) -> None:
    write_shards(tmp_path, [[[[5] * 1000]]])
    path = tmp_path / "shard-00000.arrow"
    table = pa.ipc.open_stream(path).read_all()
    with pa.ipc.new_stream(path, table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as stream:
        stream.write_table(table)
    manifest = read_json(tmp_path / "manifest.json")
    manifest["shards"][0]["bytes"] = path.stat().st_size
    write_json(tmp_path / "manifest.json", manifest)
    with pytest.raises(InputError, match="lies outside the file"):
        Corpus.open(tmp_path)


def test_a_corpus_without_its_last_write_is_none(tmp_path: Path) -> None:
    with CorpusWriter(tmp_path, tokenizer=SMALL) as writer:
        writer.add(encoded_documents(DOCUMENTS, SMALL.vocab_size))
    with pytest.raises(InputError, match="not a corpus"):
        Corpus.open(tmp_path)
