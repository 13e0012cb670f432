"""Samples by document against the text itself: budgets, mixtures, reproducibility, refusals."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertwright.cli import main
from bertwright.corpus import build as build_module
from bertwright.corpus import inputs as reading
from bertwright.corpus import sample as sampling
from bertwright.corpus.build import build_corpus
from bertwright.corpus.inputs import Reader
from bertwright.corpus.manifest import SampleSettings
from bertwright.corpus.resume import BuildState, UnfinishedBuild
from bertwright.corpus.sample import draw_documents, parse_mix, sample_inputs
from bertwright.corpus.shards import Corpus
from bertwright.errors import InputError
from bertwright.text.document import Document, TextSettings

LINES = TextSettings(documents="lines")


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder `wiki` of two files with 200 documents each, and a file `novels.txt` with 100; 1 to 9 words each."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wiki").mkdir()
    for name, count in (("wiki/a.txt", 200), ("wiki/b.txt", 200), ("novels.txt", 100)):
        lines = (f"{name[-5]}{n}" + " word" * (n * 7 % 9) for n in range(count))
        (tmp_path / name).write_text("\n".join(lines) + "\n", "utf-8")
    return tmp_path


def sampled(words: int, *mix: str, inputs: Any = (), seed: int = 0) -> Any:
    return sample_inputs(inputs, SampleSettings(words=words, seed=seed, mix=parse_mix(mix)), LINES, skip=False)


def drawn_lines(sample: Any) -> list[str]:
    reader = Reader(sample.inputs, LINES, chosen=sample.chosen, stamps=sample.stamps)
    return [document.paragraphs[0] for document in reader.documents() if isinstance(document, Document)]


def test_each_source_has_its_words_to_within_a_document(sources: Path) -> None:
    sample = sampled(1000, "wiki=0.7", "novels.txt=0.3")
    lines = drawn_lines(sample)
    counts = [sum(len(line.split()) for line in lines if (line[0] == "s") is novel) for novel in (False, True)]
    assert [each.words for each in sample.sample.drawn] == counts
    for count, budget in zip(counts, (700, 300), strict=True):
        assert budget - 9 < count <= budget
    assert sum(each.documents for each in sample.sample.drawn) == len(lines)
    assert [(each.of_documents, each.name) for each in sample.sample.drawn] == [(400, "wiki"), (100, "novels.txt")]
    everything = (sources / "wiki/a.txt").read_text() + (sources / "wiki/b.txt").read_text()
    assert sample.sample.drawn[0].of_words == len(everything.split())
    assert lines == sorted(lines, key=lambda line: ("abs".index(line[0]), int(line.split()[0][1:])))  # order of text


def test_a_sample_is_a_function_of_seed_and_text(sources: Path) -> None:
    first, again, other = (drawn_lines(sampled(500, inputs=["wiki"], seed=seed)) for seed in (0, 0, 1))
    assert first == again != other
    more = drawn_lines(sampled(900, inputs=["wiki"], seed=0))
    assert {*first} < {*more}  # a larger sample has the documents of a smaller one


def test_every_document_is_as_likely_as_any_other() -> None:
    words = np.full(100, 10)
    times = sum(draw_documents(words, 300, seed=seed).astype(int) for seed in range(1000))
    assert times.sum() == 30 * 1000
    assert abs(times - 300).max() < 5 * (1000 * 0.3 * 0.7) ** 0.5


def test_reading_continues_anywhere(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "CHUNK_CHARACTERS", 100)
    sample = sampled(1000, "wiki=0.7", "novels.txt=0.3")
    chunks = list(Reader(sample.inputs, LINES, chosen=sample.chosen).chunks())
    assert len(chunks) > 20
    for number in (0, 7, len(chunks) - 2):
        rest = Reader(sample.inputs, LINES, chosen=sample.chosen, start=chunks[number].position).chunks()
        assert [chunk.documents for chunk in rest] == [chunk.documents for chunk in chunks[number + 1 :]]


def test_a_built_sample_says_what_was_drawn(
    sources: Path, own_tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["corpus", "build", "--words", "1k", "--mix", "wiki=0.7", "--mix", "novels.txt=0.3", "--seed", "3"]
    command += ["--tokenizer", str(own_tokenizer), "--documents", "lines", "--workers", "1", "--json"]
    assert main([*command, "--out", "corpus"]) == 0
    printed = json.loads(capsys.readouterr().out)
    corpus = Corpus.open("corpus")
    sample = corpus.manifest.sample
    assert sample is not None
    assert (sample.settings.words, sample.settings.seed) == (1000, 3)
    assert printed["drawn"] == [each.model_dump() for each in sample.drawn]
    assert corpus.manifest.words == sum(each.words for each in sample.drawn) == printed["words"]
    settings = SampleSettings(words=1000, seed=3, mix=parse_mix(["wiki=0.7", "novels.txt=0.3"]))
    assert sample == sample_inputs([], settings, LINES, skip=False).sample
    again = build_corpus([], tokenizer=own_tokenizer, out="again", settings=LINES, workers=1, sample=settings)
    assert again == corpus.manifest


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("wiki --words 0", "--words '0': expected a number of words above 0"),
        ("wiki --words 10X", "--words '10X': expected a number of words above 0"),
        ("wiki --words 10M", "the inputs have 1,998 words in 400 documents, expected at least 10M; add text, or lower"),
        (
            "--words 5k --mix wiki=0.3 --mix novels.txt=0.7",
            "--mix novels.txt=0.7: it has 496 words in 100 documents, expected at least 3.5k",
        ),
        ("--words 1k --mix wiki=0.3 --mix novels.txt=0.6", "expected fractions that sum to 1, got 0.9"),
        ("--words 1k --mix =1", "--mix =1: expected SOURCE=FRACTION with a fraction above 0 and at most 1, such as "),
        ("--words 1k --mix wiki", "--mix wiki: expected SOURCE=FRACTION"),
        ("--words 1k --mix wiki=-0.5 --mix novels.txt=1.5", "--mix wiki=-0.5: expected SOURCE=FRACTION"),
        ("--words 1k --mix wiki=nan", "--mix wiki=nan: expected SOURCE=FRACTION"),
        ("--words 1k --mix wiki=0.5 --mix wiki=0.5", "wiki is named twice; name each source once"),
        ("--words 1k --mix wiki=0.5 --mix wiki/a.txt=0.5", "a.txt belongs to an earlier source too"),
        ("--words 1k --mix gone=1", "gone: no file or folder has this name or pattern"),
        ("wiki --words 1k --mix novels.txt=1", "leave the input wiki out, or add it to the mix"),
        ("--mix wiki=1", "--mix: needs --words, the number of words to draw"),
        ("wiki --seed 1", "--seed: needs --words"),
        ("wiki --seed 0", "--seed: needs --words"),
        ("wiki --words 1k --shard 1/2", "a sample is drawn from all inputs; leave --shard out"),
        ("novels.txt --documents file --words 100", "and the first that was drawn has more than 100 words"),
        ("--words 1k --mix wiki=0.9999 --mix empty.txt=0.0001", "empty.txt=0.0001: it has a fraction of less"),
        ("", "expected one input or more"),
    ],
)
def test_bad_samples_are_refused(
    sources: Path, own_tokenizer: Path, capsys: pytest.CaptureFixture[str], options: str, message: str
) -> None:
    (sources / "empty.txt").touch()
    command = ["corpus", "build", "--tokenizer", str(own_tokenizer), "--out", "corpus", *options.split()]
    breaks = [] if "--documents" in options else ["--documents", "lines"]
    assert main([*command, *breaks]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert message in error, error
    assert not Path("corpus").exists()


def test_an_input_that_grows_is_refused(sources: Path) -> None:
    sample = sampled(400, inputs=["novels.txt"])
    with (sources / "novels.txt").open("a") as stream:
        stream.write("one more line\n")
    with pytest.raises(InputError, match=r"novels\.txt: was changed while it was read"):
        drawn_lines(sample)


def test_a_file_that_is_rewritten_with_fewer_documents_is_refused(
    sources: Path, own_tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = sampled(400, inputs=["novels.txt"])
    (sources / "novels.txt").write_text("one short line\n" * 99, "utf-8")
    with pytest.raises(InputError, match=r"novels\.txt: was changed while it was read"):
        drawn_lines(sample)
    monkeypatch.setattr(build_module, "sample_inputs", lambda *_, **__: sample)
    with pytest.raises(InputError, match=r"novels\.txt: was changed while it was read"):
        build_sample(own_tokenizer, "novels.txt")


def test_a_file_that_is_rewritten_while_it_is_read_is_refused(sources: Path) -> None:
    sample = sampled(400, inputs=["novels.txt"])
    documents = Reader(sample.inputs, LINES, chosen=sample.chosen, stamps=sample.stamps).documents()
    next(documents)
    os.utime(sources / "novels.txt", ns=(1, 1))
    with pytest.raises(InputError, match=r"novels\.txt: was changed while it was read"):
        list(documents)


def build_sample(tokenizer: Path, *inputs: str, words: int = 400, out: str = "corpus") -> Any:
    settings = SampleSettings(words=words)
    return build_corpus(
        inputs, tokenizer=tokenizer, out=out, settings=LINES, workers=1, shard_tokens=300, sample=settings
    )


def test_a_stopped_sample_is_not_continued_with_other_documents(
    sources: Path, own_tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "CHUNK_CHARACTERS", 200)
    whole = build_sample(own_tokenizer, "wiki", "novels.txt", words=1500, out="whole")
    save, saved = UnfinishedBuild.save, []

    def dies(build: UnfinishedBuild, state: BuildState) -> None:
        save(build, state)
        saved.append(state)
        if len(state.shards) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(UnfinishedBuild, "save", dies)
    with pytest.raises(KeyboardInterrupt):
        build_sample(own_tokenizer, "wiki", "novels.txt", words=1500)
    monkeypatch.setattr(UnfinishedBuild, "save", save)
    assert saved[-1].position.input == 0
    before = (sources / "novels.txt").read_text("utf-8")
    changed = (sources / "novels.txt").stat().st_mtime_ns
    (sources / "novels.txt").write_text(before + "more words here\n" * 600, "utf-8")
    with pytest.raises(InputError, match=r"unfinished build with other drawn documents; remove .*building"):
        build_sample(own_tokenizer, "wiki", "novels.txt", words=1500)
    (sources / "novels.txt").write_text(before, "utf-8")
    os.utime(sources / "novels.txt", ns=(changed, changed))
    manifest = build_sample(own_tokenizer, "wiki", "novels.txt", words=1500)
    assert manifest == whole
    assert manifest.sample is not None
    assert manifest.words == manifest.sample.drawn[0].words


def test_the_drawn_documents_are_the_ones_that_were_read(
    sources: Path, own_tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = sampled(400, inputs=["novels.txt"])
    sample.chosen[0] = np.append(sample.chosen[0], True)  # a document that the file has no more
    monkeypatch.setattr(build_module, "sample_inputs", lambda *_, **__: sample)
    with pytest.raises(InputError, match=r"documents were drawn, and \d+ were read"):
        build_sample(own_tokenizer, "novels.txt")
    assert not Path("corpus/manifest.json").exists()


def test_cheap_errors_come_before_the_words_are_counted(
    sources: Path, own_tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def counts(*_: Any, **__: Any) -> None:
        raise AssertionError("the words were counted")

    monkeypatch.setattr(sampling, "_count", counts)
    with pytest.raises(InputError, match="no-tokenizer"):
        build_sample(Path("no-tokenizer"), "wiki")
    with pytest.raises(InputError, match="wiki: exists already and is not an empty folder"):
        build_sample(own_tokenizer, "novels.txt", out="wiki")
    with pytest.raises(InputError, match="gone: no file or folder has this name"):
        sampled(400, "wiki=0.5", "gone=0.5")
    (sources / "wiki" / "c.txt").symlink_to("nowhere")
    with pytest.raises(InputError, match=r"c\.txt: the link leads to no file"):
        build_sample(own_tokenizer, "novels.txt", "wiki")
