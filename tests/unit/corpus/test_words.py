"""The words that a corpus counts, against the text itself."""

import json
from pathlib import Path
from shutil import copytree

import pytest

from bertwright.cli import main
from bertwright.corpus import inputs
from bertwright.corpus.build import build_corpus
from bertwright.corpus.merge import merge_corpora, shuffle_sentences
from bertwright.corpus.shards import Corpus
from bertwright.errors import InputError
from tests.support.folders import without_words


def test_the_words_are_those_of_the_text(
    own_text: Path, own_tokenizer: Path, own_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = len(own_text.read_text("utf-8").split())
    assert Corpus.open(own_corpus).manifest.words == words
    monkeypatch.setattr(inputs, "CHUNK_CHARACTERS", 400)
    parts = build_corpus([own_text], tokenizer=own_tokenizer, out=tmp_path / "parts", workers=1, shard_tokens=200)
    assert len(parts.shards) > 2
    assert parts.words == words == sum(entry.words or 0 for entry in parts.shards)
    assert merge_corpora([own_corpus, tmp_path / "parts"], tmp_path / "both").words == 2 * words
    assert shuffle_sentences(own_corpus, tmp_path / "shuffled").words is None


def test_a_document_that_is_left_out_has_no_words(
    own_tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("A cat sat.\n\u200b \u200b \u200b\nIt  ran\taway. There\u00a0it was.\n", "utf-8")
    command = ["corpus", "build", str(text), "--tokenizer", str(own_tokenizer), "--out", str(tmp_path / "corpus")]
    assert main([*command, "--documents", "lines", "--workers", "1", "--json"]) == 0
    built = json.loads(capsys.readouterr().out)
    assert (built["documents"], built["dropped_documents"], built["words"]) == (2, 1, 9)


def test_a_corpus_of_before_opens(own_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    counted = Corpus.open(own_corpus).manifest
    assert main(["corpus", "inspect", str(own_corpus)]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("  words "))
    assert line.split()[1] == f"{counted.words:,}"
    assert line.endswith(f"({counted.tokens / (counted.words or 1):.2f} tokens a word)")
    earlier = Corpus.open(without_words(Path(copytree(own_corpus, tmp_path / "corpus"))))
    assert earlier.manifest.words is None
    assert earlier.fingerprint == counted.fingerprint
    assert main(["corpus", "inspect", str(tmp_path / "corpus")]) == 0
    expected = "unknown   (not counted: an earlier version built the corpus, or its sentences were shuffled)"
    assert expected in capsys.readouterr().out


def test_edited_words_are_refused(own_corpus: Path, tmp_path: Path) -> None:
    path = Path(copytree(own_corpus, tmp_path / "corpus")) / "manifest.json"
    manifest = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps({**manifest, "words": manifest["words"] + 1}), "utf-8")
    with pytest.raises(InputError, match="words is not the sum over the shards"):
        Corpus.open(tmp_path / "corpus")
