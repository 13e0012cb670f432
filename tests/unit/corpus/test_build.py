import errno
import lzma
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertwright.corpus import build
from bertwright.corpus import inputs as reading
from bertwright.corpus.build import build_corpus
from bertwright.corpus.checks import verify
from bertwright.corpus.encode import MAX_SENTENCE
from bertwright.corpus.inputs import Chunk, Position, Reader
from bertwright.corpus.shards import Corpus
from bertwright.corpus.writer import CorpusWriter
from bertwright.errors import InputError, RunFailed
from bertwright.text.document import Document, OnError, TextSettings
from bertwright.text.documents import read_sources
from bertwright.text.sentences import split_sentences
from bertwright.text.wordpiece import Tokenizer, import_vocabulary
from tests.support.folders import contents


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut so that a small text makes more chunks than fit under way at once."""
    monkeypatch.setattr(reading, "CHUNK_CHARACTERS", 400)
    monkeypatch.setattr(build, "CHUNKS_PER_WORKER", 2)


def corpus_documents(folder: Path) -> list[list[list[int]]]:
    corpus = Corpus.open(folder)
    first = corpus.document_first()
    sentences: list[list[int]] = []
    for number in range(corpus.num_sentences):
        shard, start, length = corpus.locate(np.array([number]), np.array([1], np.int32))
        sentences.append(corpus.views[shard[0]][start[0] : start[0] + length[0]].tolist())
    return [sentences[first[d] : first[d + 1]] for d in range(corpus.num_documents)]


def plain_documents(path: Path, tokenizer: Tokenizer, settings: TextSettings) -> Iterator[list[list[int]]]:
    """Return the documents of a corpus, made without its code; sentences over the limit are left whole."""
    for document in read_sources(path, settings):
        sentences = [ids for ids in tokenizer.ids(split_sentences(document, settings)) if ids]
        if sentences:
            yield sentences


@pytest.mark.usefixtures("small_chunks")
def test_the_number_of_workers_changes_no_byte(own_text: Path, own_tokenizer: Path, tmp_path: Path) -> None:
    manifests = [
        build_corpus([own_text], tokenizer=own_tokenizer, out=tmp_path / str(n), workers=n, shard_tokens=500)
        for n in (1, 2, 3)
    ]
    assert len(manifests[0].shards) > 2
    one = contents(tmp_path / "1")
    assert {"manifest.json", "shard-00000.arrow", "tokenizer/vocab.txt"} <= set(one)
    assert contents(tmp_path / "2") == one
    assert contents(tmp_path / "3") == one
    assert manifests[0] == verify(tmp_path / "1").manifest
    assert [source.bytes for source in manifests[0].sources] == [own_text.stat().st_size]
    expected = list(plain_documents(own_text, Tokenizer.load(own_tokenizer), TextSettings()))
    assert max(len(ids) for document in expected for ids in document) <= MAX_SENTENCE
    assert corpus_documents(tmp_path / "1") == expected


def test_settings_and_compressed_files_reach_the_corpus(own_tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("A stack. A queue.\n\nA ring. A stack.\n")
    (tmp_path / "a.txt.xz").write_bytes(lzma.compress(b"A queue.\n\x07\nA hare. A stack.\n\n\x07\n"))
    out = tmp_path / "corpus"
    settings = TextSettings(lines="sentences")
    manifest = build_corpus([tmp_path / "a*", tmp_path / "b.txt"], tokenizer=own_tokenizer, out=out, settings=settings)
    loaded = Tokenizer.load(own_tokenizer)
    assert corpus_documents(out) == [
        loaded.ids(["A queue.", "A hare. A stack."]),
        loaded.ids(["A stack. A queue."]),
        loaded.ids(["A ring. A stack."]),
    ]
    assert manifest.dropped_documents == 1  # the bell alone is no token
    assert manifest.text["lines"] == "sentences"
    assert [Path(source.path).name for source in manifest.sources] == ["a.txt.xz", "b.txt"]


def test_a_line_without_boundary_is_cut_into_spans(own_tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("stack " * 1000)
    build_corpus([tmp_path / "long.txt"], tokenizer=own_tokenizer, out=tmp_path / "corpus", workers=1)
    (document,) = corpus_documents(tmp_path / "corpus")
    assert [id for span in document for id in span] == Tokenizer.load(own_tokenizer).ids(["stack " * 1000])[0]
    assert len(document) > 1
    assert max(map(len, document)) <= MAX_SENTENCE


def refused(error: type[Exception], match: str, tmp_path: Path, **arguments: Any) -> None:
    """Expect an error, and nothing new in the folder of the corpus to be."""
    home = tmp_path / "home"
    home.mkdir(exist_ok=True)
    before = contents(home)
    with pytest.raises(error, match=match):
        build_corpus(**({"out": home / "corpus", "workers": 1} | arguments))
    assert contents(home) == before
    assert not multiprocessing.active_children()


def test_an_occupied_folder_is_refused(own_text: Path, own_tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "home" / "corpus").mkdir(parents=True)
    (tmp_path / "home" / "corpus" / "thesis.txt").write_text("mine")
    refused(InputError, "not an empty folder", tmp_path, inputs=[own_text], tokenizer=own_tokenizer)
    refused(
        InputError,
        "not an empty folder",
        tmp_path,
        inputs=[own_text],
        tokenizer=own_tokenizer,
        out=tmp_path / "home" / "corpus" / "thesis.txt",
    )


def test_an_empty_folder_is_filled(own_text: Path, own_tokenizer: Path, tmp_path: Path) -> None:
    build_corpus([own_text], tokenizer=own_tokenizer, out=tmp_path, workers=1)
    assert Corpus.open(tmp_path).num_documents > 5


def test_text_without_a_token_is_refused(own_tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n \n\x07\n")
    refused(InputError, r"no text .*empty\.txt", tmp_path, inputs=[tmp_path / "empty.txt"], tokenizer=own_tokenizer)


def test_a_broken_file_is_refused(own_text: Path, own_tokenizer: Path, tmp_path: Path) -> None:
    path = tmp_path / "cut.xz"
    path.write_bytes(lzma.compress(own_text.read_bytes() * 5)[:-40])
    refused(InputError, r"cut\.xz", tmp_path, inputs=[own_text, path], tokenizer=own_tokenizer)


def test_a_pipe_is_refused(own_tokenizer: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    refused(InputError, "pipe: not a regular file", tmp_path, inputs=[tmp_path / "pipe"], tokenizer=own_tokenizer)


def test_no_workers_are_refused(own_text: Path, own_tokenizer: Path, tmp_path: Path) -> None:
    for workers in (0, 5_000, 3_000_000_000):
        message = f"{workers} workers: expected 1 to 4096"
        refused(InputError, message, tmp_path, inputs=[own_text], tokenizer=own_tokenizer, workers=workers)


def endless(then: Any) -> Any:
    """Stand in for the reader: three documents, then something happens, then documents without end."""

    def read(path: Path, settings: TextSettings, on_error: OnError) -> Iterator[Document]:
        number = 0
        while True:
            if number == 3:
                then()
            number += 1
            yield Document(("A stack. " * 50,), f"{path}:{number}")

    return read


@pytest.mark.usefixtures("small_chunks")
def test_a_killed_worker_is_named(
    own_text: Path, own_tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "read_sources", endless(lambda: multiprocessing.active_children()[0].kill()))
    refused(RunFailed, "was killed", tmp_path, inputs=[own_text], tokenizer=own_tokenizer, workers=2)


@pytest.mark.usefixtures("small_chunks")
def test_ctrl_c_stops_the_workers_and_leaves_nothing(
    own_text: Path, own_tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "read_sources", endless(lambda: signal.raise_signal(signal.SIGINT)))
    home = tmp_path / "home"
    with pytest.raises(KeyboardInterrupt):
        build_corpus([own_text], tokenizer=own_tokenizer, out=home / "corpus", workers=2)
    assert contents(tmp_path) == {}
    assert not multiprocessing.active_children()


def test_an_error_inside_a_worker_says_where(
    own_text: Path, own_tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "encode_chunk", int)  # a worker that is given three arguments it cannot use
    refused(RunFailed, r"own_text\.txt:1 on .*TypeError", tmp_path, inputs=[own_text], tokenizer=own_tokenizer)


def test_a_full_disk_leaves_nothing(
    own_text: Path, own_tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def add(self: CorpusWriter, encoded: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(CorpusWriter, "add", add)
    refused(RunFailed, "the disk is full", tmp_path, inputs=[own_text], tokenizer=own_tokenizer)


def test_few_chunks_are_under_way_and_their_order_is_kept() -> None:
    read: list[int] = []

    def chunks() -> Iterator[Chunk]:
        for number in range(50):
            read.append(number)
            yield Chunk([Document((str(number),), f"text:{number}")], Position(documents=number))

    class Pool:
        def submit(self, work: object, documents: list[Document], *rest: object, **more: object) -> Future[Any]:
            future: Future[Any] = Future()
            future.set_result(documents[0].paragraphs[0])
            return future

    pool: Any = Pool()
    ahead, written = [], []
    for result, position in build._encode(chunks(), pool, Path("tokenizer"), TextSettings(), skip=False, limit=4):
        written.append(result)
        ahead.append(len(read) - len(written))
        assert str(position.documents) == str(result)
    assert written == [str(number) for number in range(50)]
    assert max(ahead) == 4


def test_progress_shows_the_time_left(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("word " * 1000)
    (tmp_path / "b.txt").write_text("word " * 1000)
    reader = Reader([tmp_path / "a.txt", tmp_path / "b.txt"], TextSettings())
    reader._progress._begin -= 120  # two minutes for the first of two equal files
    documents = reader.documents()
    next(documents)
    next(documents)  # the text of the second file has been read as well, but for its end
    assert "about 0 min 0 s left" in reader.progress()
    reader._progress.characters = 0
    assert "about 2 min 0 s left" in reader.progress()
    assert len(list(documents)) == 0
    assert len(reader.sources) == 2


def test_an_input_without_text_takes_no_forecast_away(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("")
    (tmp_path / "b.txt").write_text("word " * 1000)
    reader = Reader([tmp_path / "a.txt", tmp_path / "b.txt"], TextSettings())
    next(reader.documents())
    assert "about 0 min 0 s left" in reader.progress()


def test_ctrl_c_twice_ends_a_build_that_is_busy(own_tokenizer: Path, tmp_path: Path) -> None:
    """Workers never hear it: they have to be ended, or the second one would wait for them for ever."""
    script = tmp_path / "build.py"
    script.write_text(
        "import sys, time\n"
        "from bertwright.corpus import build, inputs as reading\n"
        "from bertwright.text.document import Document\n"
        "def busy(*_, **__):\n"
        "    time.sleep(3600)\n"
        "def read(path, settings, on_error):\n"
        "    yield from [Document(('A stack.',), 'text:1')] * 6\n"
        "    print('all are busy', flush=True)\n"
        "    time.sleep(3600)\n"
        "build.encode_chunk, reading.read_sources, reading.CHUNK_CHARACTERS = busy, read, 1\n"
        "if __name__ == '__main__':\n"
        "    build.build_corpus([sys.argv[1]], tokenizer=sys.argv[2], out=sys.argv[3], workers=2)\n"
    )
    (tmp_path / "text.txt").write_text("A stack.\n")
    command = [sys.executable, script, tmp_path / "text.txt", own_tokenizer, tmp_path / "corpus"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as build:
        try:
            assert build.stdout is not None
            assert build.stdout.readline() == "all are busy\n"
            os.killpg(build.pid, signal.SIGINT)
            time.sleep(0.2)
            with suppress(ProcessLookupError):
                os.killpg(build.pid, signal.SIGINT)
            assert build.wait(timeout=60) != 0
        finally:
            with suppress(ProcessLookupError):
                os.killpg(build.pid, signal.SIGKILL)
    assert not (tmp_path / "corpus").exists()


def test_workers_end_with_a_killed_parent(own_text: Path, own_tokenizer: Path, tmp_path: Path) -> None:
    script = tmp_path / "build.py"
    script.write_text(
        "import multiprocessing, sys, time\n"
        "from bertwright.corpus import build, inputs as reading\n"
        "from bertwright.text.document import Document\n"
        "def read(path, settings, on_error):\n"
        "    yield from [Document(('A stack.',), 'text:1')] * 3\n"
        "    print(*(child.pid for child in multiprocessing.active_children()), flush=True)\n"
        "    time.sleep(60)\n"
        "if __name__ == '__main__':\n"
        "    reading.read_sources, reading.CHUNK_CHARACTERS = read, 1\n"
        "    build.build_corpus([sys.argv[1]], tokenizer=sys.argv[2], out=sys.argv[3], workers=2)\n"
    )
    command = [sys.executable, script, own_text, own_tokenizer, tmp_path / "corpus"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        workers = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(workers) == 2
        parent.kill()
    end = time.monotonic() + 30
    while any(Path(f"/proc/{pid}/cmdline").exists() and _alive(pid) for pid in workers):
        assert time.monotonic() < end, "the workers outlive their parent"
        time.sleep(0.05)


def _alive(pid: int) -> bool:
    try:
        return "(zombie)" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def test_real_articles(shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "read_sources", lambda *arguments: islice(read_sources(*arguments), 20))
    import_vocabulary(shared_data / "vocab" / "bert-base-uncased-vocab.txt", cased=False).save(tmp_path / "tokenizer")
    path = shared_data / "enwiki" / "heldout.xz"
    manifest = build_corpus([path], tokenizer=tmp_path / "tokenizer", out=tmp_path / "corpus", workers=2)
    assert manifest.documents == 20
    loaded = verify(tmp_path / "corpus").tokenizer
    expected = islice(plain_documents(path, loaded, TextSettings()), 20)
    assert [[id for ids in document for id in ids] for document in corpus_documents(tmp_path / "corpus")] == [
        [id for ids in document for id in ids] for document in expected
    ]
