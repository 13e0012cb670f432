"""Exact duplicates: the drop list against a plain walk, whatever the ranges, the shards and the build."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from bertwright.corpus import duplicates
from bertwright.corpus.build import build_corpus
from bertwright.corpus.checks import verify
from bertwright.corpus.duplicates import document_hashes, find_duplicates
from bertwright.corpus.manifest import ShardEntry
from bertwright.corpus.merge import merge_corpora
from bertwright.corpus.shards import Corpus
from bertwright.errors import InputError
from bertwright.objectives.dataset import Examples
from bertwright.objectives.settings import ExampleSettings
from bertwright.text.wordpiece import train_wordpiece


def sidecars(folder: Path, texts: list[list[int]]) -> tuple[list[ShardEntry], list[int]]:
    """Shards whose documents are these numbers, and the numbers of the documents that a plain walk drops."""
    entries, seen, dropped, number = [], set(), [], 0
    for index, shard in enumerate(texts):
        hashes = [hashlib.blake2b(str(text).encode(), digest_size=16).digest() for text in shard]
        name = f"shard-{index:05d}"
        (folder / f"{name}.hashes").write_bytes(b"".join(hashes))
        entries.append(
            ShardEntry(
                name=f"{name}.arrow",
                bytes=0,
                documents=len(shard),
                sentences=0,
                tokens=0,
                sha256="",
                hashes_sha256="",
            )
        )
        for text in shard:
            if text in seen:
                dropped.append(number)
            seen.add(text)
            number += 1
    return entries, dropped


@pytest.mark.parametrize("span", [4_000_000, 100, 7])
def test_later_equals_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, span: int) -> None:
    monkeypatch.setattr(duplicates, "RANGE_DOCUMENTS", span)
    monkeypatch.setattr(duplicates, "_AT_ONCE", 37)
    random = np.random.default_rng(0)
    texts = [random.integers(0, 400, size).tolist() for size in (300, 1, 0, 200)]
    entries, dropped = sidecars(tmp_path, texts)
    assert len(dropped) > 100
    assert find_duplicates(tmp_path, entries).tolist() == dropped


def test_hashes_that_end_in_zeros_are_whole_hashes(tmp_path: Path) -> None:
    entries, _ = sidecars(tmp_path, [[1, 2, 3]])
    (tmp_path / "shard-00000.hashes").write_bytes(b"a" * 15 + b"\0" + b"a" * 15 + b"b" + b"a" * 15 + b"\0")
    assert find_duplicates(tmp_path, entries).tolist() == [2]


def test_documents_are_hashed_by_their_tokens() -> None:
    ids = np.array([5, 6, 7, 5, 6, 7, 5, 6], np.uint16)
    hashes = document_hashes(ids, np.array([0, 3, 6, 8]))
    parts = [hashes[i : i + 16] for i in range(0, 48, 16)]
    assert parts[0] == parts[1] != parts[2]
    assert parts[2] == hashlib.blake2b(np.array([5, 6], "<u2").tobytes(), digest_size=16).digest()


def test_no_row_uses_a_duplicate(own_text: Path, own_tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "again.txt").write_text("\n\n".join([own_text.read_text(), own_text.read_text()]))
    once = build_corpus([own_text], tokenizer=own_tokenizer, out=tmp_path / "once", workers=1)
    twice = build_corpus([tmp_path / "again.txt"], tokenizer=own_tokenizer, out=tmp_path / "twice", workers=2)
    kept = build_corpus(
        [tmp_path / "again.txt"], tokenizer=own_tokenizer, out=tmp_path / "kept", workers=1, keep_duplicates=True
    )
    assert twice.documents == kept.documents == 2 * once.documents
    assert twice.duplicates is not None
    assert twice.duplicates.documents == once.documents
    assert kept.duplicates is None
    assert [entry.sha256 for entry in twice.shards] == [entry.sha256 for entry in kept.shards]
    assert len({once.fingerprint, twice.fingerprint, kept.fingerprint}) == 3
    corpora = {name: Corpus.open(tmp_path / name) for name in ("once", "twice", "kept")}
    assert corpora["twice"].duplicates.tolist() == list(range(once.documents, 2 * once.documents))
    rows = {
        name: Examples(corpus, ExampleSettings(second_sentence="none", short_share=0.0), length=32, seed=0).num_rows(0)
        for name, corpus in corpora.items()
    }
    assert rows["twice"] == rows["once"] == rows["kept"] / 2
    verify(tmp_path / "twice")


def test_merging_finds_duplicates_in_other_parts(own_text: Path, own_tokenizer: Path, tmp_path: Path) -> None:
    whole = build_corpus([own_text], tokenizer=own_tokenizer, out=tmp_path / "a" / "one", workers=1)
    build_corpus([own_text], tokenizer=own_tokenizer, out=tmp_path / "two", workers=1)
    merged = merge_corpora([tmp_path / "a" / "one", tmp_path / "two"], tmp_path / "b" / "all")
    assert merged.documents == 2 * whole.documents
    assert merged.duplicates is not None
    assert merged.duplicates.documents == whole.documents
    assert [entry.name for entry in merged.shards] == ["../../a/one/shard-00000.arrow", "../../two/shard-00000.arrow"]
    written = {path.name for path in (tmp_path / "b" / "all").iterdir()}
    assert written == {"manifest.json", "duplicates.i8", "tokenizer"}
    corpus = verify(tmp_path / "b" / "all")
    assert corpus.num_tokens == 2 * whole.tokens
    kept = merge_corpora([tmp_path / "two", tmp_path / "a" / "one"], tmp_path / "kept", keep_duplicates=True)
    assert kept.duplicates is None


def test_what_cannot_be_merged_is_refused(own_text: Path, own_tokenizer: Path, tmp_path: Path) -> None:
    build_corpus([own_text], tokenizer=own_tokenizer, out=tmp_path / "one", workers=1)
    train_wordpiece([own_text.read_text()], vocab_size=400).save(tmp_path / "small")
    build_corpus([own_text], tokenizer=tmp_path / "small", out=tmp_path / "two", workers=1)
    for parts, message in (
        (["one", "two"], "another tokenizer than"),
        (["one", "one"], "the same"),
        (["one", "absent"], "not a corpus"),
        ([], "expected one corpus or more"),
    ):
        with pytest.raises(InputError, match=message):
            merge_corpora([tmp_path / part for part in parts], tmp_path / "all")
        assert not (tmp_path / "all").exists()
    (tmp_path / "one" / "shard-00000.hashes").unlink()
    with pytest.raises(InputError, match=r"shard-00000\.hashes: there is no such file"):
        merge_corpora([tmp_path / "one"], tmp_path / "all")
    assert not (tmp_path / "all").exists()
