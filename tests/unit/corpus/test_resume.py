"""A build that ends too early goes on to the same bytes, or leaves nothing; text that cannot be read is left out."""

import bz2
import errno
import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bertwright import locks
from bertwright.corpus import inputs as reading
from bertwright.corpus import resume as unfinished
from bertwright.corpus.build import build_corpus
from bertwright.corpus.encode import encode_chunk
from bertwright.corpus.inputs import part_of
from bertwright.corpus.manifest import Manifest
from bertwright.corpus.shards import Corpus
from bertwright.corpus.writer import CorpusWriter
from bertwright.errors import InputError, RunFailed
from bertwright.text.document import Document, OnError, TextSettings
from bertwright.text.documents import Input
from bertwright.text.documents import read_sources as read_really
from tests.support.commands import run_bertwright
from tests.support.folders import contents


@pytest.fixture
def texts(own_text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Three files of text, which chunks of the test's size cut into many shards."""
    monkeypatch.setattr(reading, "CHUNK_CHARACTERS", 400)
    lines = own_text.read_text().split("\n\n")
    paths = []
    for number in range(3):
        path = tmp_path / "texts" / f"{number}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n\n".join(f"Number {number}. {line}" for line in lines))
        paths.append(path)
    return paths


def build(inputs: list[Path], tokenizer: Path, out: Path, **more: Any) -> Manifest:
    return build_corpus(inputs, tokenizer=tokenizer, out=out, **({"workers": 1, "shard_tokens": 300} | more))


class Dies(Exception):
    pass


def dying(name: str, after: int) -> Any:
    """The reader, until it has given so many documents of the file with this name."""

    def read(source: Input, settings: TextSettings, on_error: OnError) -> Iterator[Document]:
        for number, document in enumerate(read_really(source, settings, on_error)):
            if (str(source).endswith(name), number) == (True, after):
                raise Dies
            yield document  # type: ignore[misc]

    return read


def test_a_build_goes_on_to_the_same_bytes(
    texts: list[Path], own_tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    whole = build(texts, own_tokenizer, tmp_path / "whole")
    assert len(whole.shards) > 6
    home = tmp_path / "home"
    home.mkdir()
    kept = []
    for workers, name, after in ((1, "0.txt", 2), (2, "1.txt", 3), (1, "2.txt", 0), (1, "2.txt", 9)):
        monkeypatch.setattr(reading, "read_sources", dying(name, after))
        with pytest.raises(Dies):
            build(texts, own_tokenizer, home / "corpus", workers=workers)
        assert not (home / "corpus" / "manifest.json").exists()
        state = home / "corpus" / ".building" / "build.json"
        kept.append(len(json.loads(state.read_text())["state"]["shards"]) if state.exists() else 0)
    assert kept[0] == 0 < kept[1] < kept[2] < kept[3]
    monkeypatch.setattr(reading, "read_sources", read_really)
    (state.parent / ".build.json.x.tmp").touch()  # as a kill within a write of the state leaves it
    assert build(texts, own_tokenizer, home / "corpus") == whole
    assert "continues after" in capsys.readouterr().err
    assert contents(home) == {f"corpus/{name}": data for name, data in contents(tmp_path / "whole").items()}


def stopped(texts: list[Path], tokenizer: Path, out: Path, monkeypatch: pytest.MonkeyPatch, **more: Any) -> None:
    monkeypatch.setattr(reading, "read_sources", dying("1.txt", 8))
    with pytest.raises(Dies):
        build(texts, tokenizer, out, **more)
    monkeypatch.setattr(reading, "read_sources", read_really)


def test_a_build_of_another_configuration_is_not_taken_up(
    texts: list[Path], own_tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "corpus"
    stopped(texts, own_tokenizer, out, monkeypatch)
    before = contents(tmp_path / "corpus" / ".building")
    for inputs, more, named in (
        (texts, {"shard_tokens": 301}, "shard_tokens"),
        (texts[:2], {}, "inputs"),
        (texts, {"settings": TextSettings(language="de"), "skip": True}, r"text \(language de, not en\), on_error"),
    ):
        with pytest.raises(InputError, match=rf"unfinished build with other {named}; remove .*building"):
            build(inputs, own_tokenizer, out, **more)
    texts[0].write_text(texts[0].read_text() + "More.")
    with pytest.raises(InputError, match=r"0\.txt: was changed after the unfinished build"):
        build(texts, own_tokenizer, out)
    assert contents(tmp_path / "corpus" / ".building") == before


def test_a_build_by_earlier_rules_is_named(
    texts: list[Path], own_tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped(texts, own_tokenizer, tmp_path / "corpus", monkeypatch)
    path = tmp_path / "corpus" / ".building" / "build.json"
    state = json.loads(path.read_text())
    del state["config"]["text"]["rules"]
    path.write_text(json.dumps(state))
    with pytest.raises(InputError, match=r"unfinished build with other text \(rules 2, not 1\); remove .*building"):
        build(texts, own_tokenizer, tmp_path / "corpus")


def test_an_input_that_was_not_yet_read_may_change(
    texts: list[Path], own_tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped(texts, own_tokenizer, tmp_path / "corpus", monkeypatch)
    texts[2].write_text("Another text. It is short.\n")
    changed = build(texts, own_tokenizer, tmp_path / "corpus")
    assert build(texts, own_tokenizer, tmp_path / "fresh") == changed


def killed_at_the_end(
    texts: list[Path], tokenizer: Path, out: Path, done: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After `done` of the last operations: five files move up, three folders and files go, and one more folder."""
    left = [done]

    def counted(really: Any) -> Any:
        def act(*arguments: Any, **named: Any) -> Any:
            if left[0] == 0:
                raise Dies
            left[0] -= 1
            return really(*arguments, **named)

        return act

    really = unfinished._move_up

    def move_up(home: Path, out: Path) -> None:
        with monkeypatch.context() as patched:
            for name in ("replace", "unlink", "rmdir"):
                patched.setattr(unfinished.os, name, counted(getattr(unfinished.os, name)))
            really(home, out)

    with monkeypatch.context() as patched:
        patched.setattr(unfinished, "_move_up", move_up)
        with pytest.raises(Dies):
            build(texts, tokenizer, out, shard_tokens=10_000)
    assert left == [0]


@pytest.mark.parametrize("done", range(9))
def test_a_build_killed_while_it_ends_is_done(
    texts: list[Path], own_tokenizer: Path, tmp_path: Path, done: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "corpus"
    killed_at_the_end(texts, own_tokenizer, out, done, monkeypatch)
    manifest = build(texts, own_tokenizer, out, shard_tokens=10_000)
    assert manifest == build(texts, own_tokenizer, tmp_path / "whole", shard_tokens=10_000)
    assert contents(out) == contents(tmp_path / "whole")
    with pytest.raises(InputError, match="not an empty folder"):
        build(texts, own_tokenizer, out)


@pytest.mark.parametrize("done", [0, 4, 5])
@pytest.mark.parametrize("change", ["Another text, which is longer. " * 100, None])
def test_a_build_killed_while_it_ends_is_none_of_a_text_that_changed(
    texts: list[Path],
    own_tokenizer: Path,
    tmp_path: Path,
    done: int,
    change: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Changed in size, or only in modification time."""
    out = tmp_path / "corpus"
    killed_at_the_end(texts, own_tokenizer, out, done, monkeypatch)
    before = contents(out)
    texts[1].write_text(change or texts[1].read_text().upper())
    if change is None:
        later = time.time_ns() + 10**9
        os.utime(texts[1], ns=(later, later))
    with pytest.raises(InputError, match=r"1\.txt: was changed after the build in .* read it; remove .*corpus to"):
        build(texts, own_tokenizer, out, shard_tokens=10_000)
    assert contents(out) == before


def test_a_link_and_the_working_folder_may_be_filled(
    texts: list[Path], own_tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    build(texts, own_tokenizer, tmp_path / "link")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    build(texts, own_tokenizer, Path())
    assert contents(tmp_path / "real") == contents(tmp_path / "here")
    assert Corpus.open(tmp_path / "link").num_documents > 5


def test_two_builds_of_one_corpus_at_once_are_refused(
    texts: list[Path], own_tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = []
    really = CorpusWriter.add

    def add(self: CorpusWriter, encoded: Any) -> bool:
        if not refused:
            refused.append(True)
            with pytest.raises(InputError, match="another process is building this corpus"):
                build(texts, own_tokenizer, tmp_path / "corpus")
        return really(self, encoded)

    monkeypatch.setattr(CorpusWriter, "add", add)
    build(texts, own_tokenizer, tmp_path / "corpus")
    assert refused


def test_a_disk_without_locks_is_refused(
    texts: list[Path], own_tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int, **_: Any) -> bool:
        raise OSError(errno.ENOLCK, "No locks available")

    with monkeypatch.context() as patched:
        patched.setattr(locks, "lock_descriptor", fail)
        with pytest.raises(InputError, match="corpus: this file system has no locks, which a build needs"):
            build(texts, own_tokenizer, tmp_path / "corpus")
    assert build(texts, own_tokenizer, tmp_path / "corpus").documents > 5


@pytest.mark.slow
def test_a_full_disk_keeps_the_whole_shards(
    texts: list[Path], own_tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really, added = CorpusWriter.add, []

    def add(self: CorpusWriter, encoded: Any) -> bool:
        added.append(1)
        if len(added) == 8:
            raise OSError(errno.ENOSPC, "No space left on device")
        return really(self, encoded)

    monkeypatch.setattr(CorpusWriter, "add", add)
    with pytest.raises(RunFailed, match="the disk is full"):
        build(texts, own_tokenizer, tmp_path / "corpus")
    assert {path.name for path in (tmp_path / "corpus").iterdir()} == {".building"}
    manifest = build(texts, own_tokenizer, tmp_path / "corpus")
    assert manifest == build(texts, own_tokenizer, tmp_path / "whole")


def test_files_that_may_not_grow_are_reported(own_text: Path, own_tokenizer: Path, tmp_path: Path) -> None:
    import resource

    (tmp_path / "long.txt").write_text(own_text.read_text() * 40)
    completed = run_bertwright(
        *(
            "corpus",
            "build",
            tmp_path / "long.txt",
            "--tokenizer",
            own_tokenizer,
            "--out",
            tmp_path / "home" / "corpus",
        ),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
    )
    assert completed.returncode == 1
    assert "corpus: the disk is full (File too large); nothing was written there" in completed.stderr
    assert contents(tmp_path / "home") == {}


def test_a_folder_that_cannot_be_written_is_reported(own_text: Path, own_tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home").chmod(0o555)
    command = ("corpus", "build", own_text, "--tokenizer", own_tokenizer, "--out", tmp_path / "home" / "corpus")
    if os.geteuid() == 0:  # whom no permission stops: a file where the folder should be does
        (tmp_path / "file").write_text("")
        command = (*command[:-1], tmp_path / "file" / "corpus")
    completed = run_bertwright(*command)
    assert completed.returncode == 2
    assert "file is a file" in completed.stderr or "no file can be written in" in completed.stderr
    assert contents(tmp_path / "home") == {}


def test_what_cannot_be_read_is_left_out_and_counted(
    texts: list[Path], own_tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [json.dumps({"text": f"Record {n} is here. It has words."}) for n in range(60)]
    lines[10], lines[40] = "{", json.dumps({"body": "x"})
    (tmp_path / "records.jsonl").write_text("\n".join(lines))
    packed = bz2.compress(texts[0].read_bytes() * 30, 1)
    (tmp_path / "cut.txt.bz2").write_bytes(packed[: len(packed) * 2 // 3])
    (tmp_path / "cut.csv").write_bytes(b"text\nOne row is here.\nCaf\xe9.\nIt is lost.\n")
    inputs = [tmp_path / "records.jsonl", tmp_path / "cut.txt.bz2", tmp_path / "cut.csv", texts[1]]
    with pytest.raises(InputError, match=r"records\.jsonl:11"):
        build(inputs, own_tokenizer, tmp_path / "stop")
    manifest = build(inputs, own_tokenizer, tmp_path / "skip", skip=True)
    assert (manifest.skipped.files, manifest.skipped.records) == (2, 2)
    parts, messages = (":11:", ":41:", "cut.txt.bz2", "cut.csv:3"), manifest.skipped.first
    assert [part in message for part, message in zip(parts, messages, strict=True)] == [True] * 4
    good = [tmp_path / "good.jsonl", texts[1]]
    good[0].write_text("\n".join(line for n, line in enumerate(lines) if n not in (10, 40)))
    expected = build(good, own_tokenizer, tmp_path / "good")
    assert manifest.documents > expected.documents  # what could be read of the file that was cut short is there
    assert len(manifest.sources) == 4

    monkeypatch.setattr(reading, "read_sources", dying("records.jsonl", 45))
    with pytest.raises(Dies):
        build(inputs, own_tokenizer, tmp_path / "again", skip=True)
    monkeypatch.setattr(reading, "read_sources", read_really)
    assert build(inputs, own_tokenizer, tmp_path / "again", skip=True) == manifest
    assert contents(tmp_path / "again") == contents(tmp_path / "skip")


def test_a_build_names_the_bad_byte(own_tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.txt").write_bytes(b"One line.\nCaf\xe9 here.\nAnother one.\n\xe9\n")
    message = r"bad\.txt:2: not UTF-8 text: byte 0xe9 at byte 14 of the text .*; convert it to UTF-8"
    with pytest.raises(InputError, match=message):
        build([tmp_path / "bad.txt"], own_tokenizer, tmp_path / "stop")
    manifest = build([tmp_path / "bad.txt"], own_tokenizer, tmp_path / "skip", skip=True)
    assert (manifest.skipped.files, manifest.skipped.records, manifest.documents) == (0, 2, 1)
    assert re.search(message, manifest.skipped.first[0])


def test_nothing_but_bad_text_is_an_error_all_the_same(own_tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match=r"no text was found .*bad\.txt:1: not UTF-8"):
        build([tmp_path / "bad.txt"], own_tokenizer, tmp_path / "corpus", skip=True)
    assert not (tmp_path / "corpus").exists()


def test_a_link_that_leads_nowhere_is_named_or_left_out(texts: list[Path], own_tokenizer: Path, tmp_path: Path) -> None:
    (texts[0].parent / "gone.txt").symlink_to("nowhere")
    with pytest.raises(InputError, match=r"gone\.txt: the link leads to no file"):
        build([texts[0].parent], own_tokenizer, tmp_path / "stop")
    manifest = build([texts[0].parent], own_tokenizer, tmp_path / "skip", skip=True)
    assert manifest.skipped.files == 1
    assert manifest.documents == build(texts, own_tokenizer, tmp_path / "good").documents


def test_parts_are_stretches_of_about_equal_bytes(tmp_path: Path) -> None:
    paths: list[Input] = []
    for number, size in enumerate((5, 1, 1, 1, 8, 4, 6, 5, 9, 1, 100, 99)):
        path = tmp_path / f"{number}.txt"
        path.write_bytes(b"x" * size)
        paths.append(path)
    for three in (paths[6:9], paths[9:]):
        assert [len(part_of(three, (i, 2))) for i in (1, 2)] == [2, 1]
    paths = paths[:6]
    for n in range(1, 7):
        parts = [part_of(paths, (i + 1, n)) for i in range(n)]
        assert [path for part in parts for path in part] == paths
        assert all(parts)
    assert [len(part_of(paths, (i, 2))) for i in (1, 2)] == [4, 2]
    assert part_of(paths, None) == paths
    for part, message in (((0, 2), "from 1 to n"), ((3, 2), "from 1 to n"), ((1, 7), "files are not divided")):
        with pytest.raises(InputError, match=message):
            part_of(paths, part)


@pytest.mark.slow
def test_parts_built_apart_hold_the_text_of_the_whole(texts: list[Path], own_tokenizer: Path, tmp_path: Path) -> None:
    whole = run_bertwright(
        "corpus", "build", *texts, "--tokenizer", own_tokenizer, "--out", tmp_path / "whole", "--json"
    )
    for i in (1, 2, 3):
        part = ("--shard", f"{i}/3", "--tokenizer", own_tokenizer, "--out", tmp_path / str(i))
        assert run_bertwright("corpus", "build", *texts, *part).returncode == 0
    merged = run_bertwright(
        "corpus", "merge", *(tmp_path / str(i) for i in (1, 2, 3)), "--out", tmp_path / "all", "--json"
    )
    for name in ("documents", "sentences", "tokens", "duplicates"):
        assert json.loads(merged.stdout)[name] == json.loads(whole.stdout)[name]
    one, other = Corpus.open(tmp_path / "whole"), Corpus.open(tmp_path / "all")
    assert one.sentence_lengths().tolist() == other.sentence_lengths().tolist()
    assert [token for _, tokens in one.blocks() for token in tokens] == [
        token for _, tokens in other.blocks() for token in tokens
    ]
    assert (
        run_bertwright("corpus", "build", *texts, "--shard", "2", "--tokenizer", own_tokenizer, "--out", "x").returncode
        == 2
    )


def test_a_page_that_defeats_the_reader_of_markup_is_named_or_left_out(own_tokenizer: Path) -> None:
    words = Document(("good text.",), "text:1")
    bad = Document((None,), "text:2")  # type: ignore[arg-type]
    with pytest.raises(RunFailed, match="text:2: could not be split into sentences"):
        encode_chunk([words, bad], own_tokenizer, TextSettings(), skip=False)
    encoded = encode_chunk([words, bad], own_tokenizer, TextSettings(), skip=True)
    assert len(encoded.documents.document_first) == 2
    assert [message[:7] for message in encoded.failed] == ["text:2:"]


@pytest.mark.parametrize("config", [None, []])
def test_a_damaged_state_is_named(
    texts: list[Path], own_tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: Any
) -> None:
    stopped(texts, own_tokenizer, tmp_path / "corpus", monkeypatch)
    path = tmp_path / "corpus" / ".building" / "build.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "config": config}))
    with pytest.raises(InputError, match="unfinished build with other"):
        build(texts, own_tokenizer, tmp_path / "corpus")
    path.write_text("[]")
    with pytest.raises(InputError, match=r"build\.json: expected a JSON object, got a list"):
        build(texts, own_tokenizer, tmp_path / "corpus")
