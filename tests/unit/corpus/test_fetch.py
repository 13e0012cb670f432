"""Corpora by URL: the copy has the bytes of the corpus, is made once, and is never taken half."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from bertwright.corpus import inputs
from bertwright.corpus.build import build_corpus
from bertwright.corpus.checks import verify
from bertwright.corpus.fetch import fetch_corpus
from bertwright.corpus.inputs import Reader, stamp_of
from bertwright.corpus.manifest import MANIFEST
from bertwright.corpus.merge import merge_corpora
from bertwright.corpus.shards import Corpus
from bertwright.errors import InputError, RunFailed
from bertwright.text.document import TextSettings
from bertwright.text.documents import find_inputs
from tests.support.stores import FaultyStore, keys, lost_from, put, put_folder


@pytest.fixture
def corpus_url(store: Any, own_corpus: Path) -> str:
    put_folder(own_corpus, "b/corpus")
    return "faulty://b/corpus"


def reads() -> list[str]:
    return [path for name, path in FaultyStore.calls if name == "read"]


def test_the_copy_equals_the_corpus_and_is_made_once(corpus_url: str, own_corpus: Path) -> None:
    folder = fetch_corpus(corpus_url)
    assert Corpus.open(folder).fingerprint == Corpus.open(own_corpus).fingerprint
    assert verify(folder)
    FaultyStore.calls.clear()
    assert fetch_corpus(f"{corpus_url}/") == folder
    assert reads() == []


def test_a_stopped_download_continues_with_what_is_missing(corpus_url: str) -> None:
    FaultyStore.fault = lost_from(9)
    with pytest.raises(RunFailed, match="connection lost"):
        fetch_corpus(corpus_url)
    first = reads()
    assert any(path.endswith(".arrow") for path in first)
    FaultyStore.fault = None
    FaultyStore.calls.clear()
    folder = fetch_corpus(corpus_url)
    assert verify(folder)
    assert not set(first[:-1]) & set(reads())  # the last one was not complete


def test_a_shard_with_another_digest_is_refused_and_the_manifest_not_written(corpus_url: str, tmp_path: Path) -> None:
    shard = next(key for key in keys() if key.endswith(".arrow"))
    content = bytearray(FaultyStore.store[f"/{shard}"].getvalue())
    content[-20] ^= 1
    put(shard, bytes(content))
    with pytest.raises(RunFailed, match=r"\.arrow: expected the sha256 [0-9a-f]{12}…, got [0-9a-f]{12}…"):
        fetch_corpus(corpus_url)
    assert not list(tmp_path.rglob("*.arrow"))
    assert [path for path in tmp_path.rglob(MANIFEST) if path.parent.joinpath("tokenizer").exists()] == []


def test_what_is_no_whole_corpus_is_refused(corpus_url: str, store: Any, own_corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="b/absent: not a corpus"):
        fetch_corpus("faulty://b/absent")
    merge_corpora([own_corpus], tmp_path / "merged")
    put_folder(tmp_path / "merged", "b/merged")
    with pytest.raises(InputError, match=r"b/merged: names the shard .*\.\./.*, outside of its folder"):
        fetch_corpus("faulty://b/merged")
    store.rm_file(store(), "/" + next(key for key in keys("b/corpus") if key.endswith(".arrow")))
    with pytest.raises(InputError, match=r"\.arrow: this file of the corpus is missing in the store"):
        fetch_corpus(corpus_url)


def test_inputs_of_a_store_have_stamps_and_sources(store: Any, own_text: Path) -> None:
    put("b/a.txt", own_text.read_bytes())
    (file,) = find_inputs(["faulty://b/a.txt"])
    before = stamp_of(file)
    reader = Reader([file], TextSettings())
    documents = list(reader.documents())
    assert documents[0].location == "faulty://b/a.txt:1"
    assert (reader.stamps, reader.sources[0].path, reader.sources[0].bytes) == ([before], str(file), before[0])
    assert reader.sources[0].fingerprint.startswith("created ")
    put("b/a.txt", own_text.read_bytes())
    assert stamp_of(file)[0] == before[0] != 0
    assert stamp_of(file) != before
    with pytest.raises(RunFailed, match=r"a\.txt: was changed while it was read"):
        list(Reader([file], TextSettings(), skip=True).documents())
    store.rm_file(store(), "/b/a.txt")
    assert stamp_of(file) == (0, 0)


@pytest.mark.slow
def test_a_build_from_a_store_stops_continues_and_equals_that_of_files(
    store: Any, own_text: Path, own_tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that was changed since it was read is refused, before the build continues and when it has ended."""
    text = own_text.read_bytes()
    options: Any = {"tokenizer": own_tokenizer, "workers": 1, "shard_tokens": 100}
    monkeypatch.setattr(inputs, "CHUNK_CHARACTERS", 1_000)
    for name in "ab":
        (tmp_path / f"{name}.txt").write_bytes(text)
        put(f"b/{name}.txt", text)
    local = build_corpus([tmp_path / "a.txt", tmp_path / "b.txt"], out=tmp_path / "local", **options)
    assert build_corpus(["faulty://b/*.txt"], out=tmp_path / "once", **options).fingerprint == local.fingerprint

    def gone(name: str, path: str) -> None:
        if name == "read" and path == "/b/b.txt":
            raise ConnectionError("bucket gone")

    store.fault = gone
    out = tmp_path / "remote"
    with pytest.raises(RunFailed, match=r"faulty://b/b\.txt: the store failed: bucket gone"):
        build_corpus(["faulty://b"], out=out, **options)
    store.fault = None
    shutil.copytree(out, tmp_path / "copy")
    remote = build_corpus(["faulty://b"], out=out, **options)
    assert remote.fingerprint == local.fingerprint
    (out / ".building").mkdir()  # killed before its clean-up
    assert build_corpus(["faulty://b"], out=out, **options) == remote
    (out / ".building").mkdir()
    put("b/a.txt", text)
    with pytest.raises(InputError, match=r"faulty://b/a\.txt: was changed after the unfinished build"):
        build_corpus(["faulty://b"], out=tmp_path / "copy", **options)
    with pytest.raises(InputError, match=r"faulty://b/a\.txt: was changed after the build in .* read it"):
        build_corpus(["faulty://b"], out=out, **options)
