"""Data of the experiments: the files, the rows that are taken of them, and the corpora."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from bertwright.corpus.build import build_corpus
from bertwright.corpus.merge import shuffle_sentences
from bertwright.corpus.shards import Corpus
from bertwright.errors import InputError
from bertwright.experiments.corpora import check_text, make_corpora, note_corpora
from bertwright.experiments.data import (
    PAPER_TASKS,
    Limits,
    Subset,
    choose_rows,
    find_source,
    make_subset,
    note_subset,
    noted_subsets,
)
from bertwright.tasks.classification.spec import get_task
from bertwright.tasks.classification.task import CLASSIFICATION
from bertwright.tasks.multiple_choice.spec import SWAG, read_choices
from bertwright.tasks.question_answering.data import read_questions
from bertwright.tasks.spec import get_spec
from bertwright.tasks.tagging.spec import read_tagged
from bertwright.text.bpe import BPETokenizer
from bertwright.text.documents import absolute_name
from tests.support.paper_data import write_data


@pytest.fixture(scope="module")
def paper_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"))


def subset(data: Path, name: str, limits: Limits, out: Path) -> Subset:
    present = find_source(PAPER_TASKS[name], data)
    assert present
    return make_subset(PAPER_TASKS[name], present[1], limits, out)


def test_own_data_come_before_what_stands_in(paper_data: Path, tmp_path: Path) -> None:
    source, files = find_source(PAPER_TASKS["qnli"], paper_data) or (None, {})
    assert source
    assert (files["train"].name, "SQuAD" in source.note) == ("train.derived.tsv", True)
    data = write_data(tmp_path)
    (data / "glue/QNLI/train.tsv").write_text((data / "glue/QNLI/train.derived.tsv").read_text())
    source, files = find_source(PAPER_TASKS["qnli"], data) or (None, {})
    assert source
    assert (files["train"].name, source.note) == ("train.tsv", "")


def test_a_task_whose_files_are_not_all_there_has_none(paper_data: Path, tmp_path: Path) -> None:
    assert find_source(PAPER_TASKS["mrpc"], paper_data) is None
    half = write_data(tmp_path)
    (half / "glue/MNLI/dev_mismatched.tsv").unlink()
    assert find_source(PAPER_TASKS["mnli"], half) is None


def test_rows_are_chosen_at_random_and_the_same_ones_each_time() -> None:
    assert choose_rows(5, None) == choose_rows(5, 5) == choose_rows(5, 9) == [0, 1, 2, 3, 4]
    few, more = choose_rows(1000, 50), choose_rows(1000, 200)
    assert (len(few), len(more)) == (50, 200)
    assert set(few) < set(more)
    assert few == sorted(few) == choose_rows(1000, 50)
    assert np.mean(few) == pytest.approx(500, abs=150)


def test_tables_keep_their_layout(paper_data: Path, tmp_path: Path) -> None:
    for name in ("sst2", "cola", "mnli", "stsb"):
        made = subset(paper_data, name, (10, 6), tmp_path)
        read = CLASSIFICATION.read(get_task(name), made.folder)
        train, dev = read.train, read.validation
        all_train = CLASSIFICATION.read(
            get_task(name),
            paper_data / "glue" / {"sst2": "SST-2", "cola": "CoLA", "mnli": "MNLI", "stsb": "STS-B"}[name],
        ).train
        assert len(train) == 10
        assert {len(part) for part in dev.values()} == {6}
        assert set(train.texts_a) <= set(all_train.texts_a)
        assert made.rows["train"] == (10, 40)


def test_choices_questions_and_sentences_keep_theirs(paper_data: Path, tmp_path: Path) -> None:
    swag = subset(paper_data, "swag", (10, None), tmp_path)
    assert len(read_choices(SWAG, swag.folder / "train.csv")) == 10
    assert (swag.folder / "dev.csv").read_bytes() == (paper_data / "swag/codah-val.csv").read_bytes()
    for name, version in (("squad1", "1.1"), ("squad2", "2.0")):
        made = subset(paper_data, name, (7, 5), tmp_path)
        questions = read_questions(made.folder / "train.json")
        assert (len(questions), questions.version) == (7, version)
        assert len(read_questions(made.folder / "dev.json")) == 5
    names = subset(paper_data, "ner", (8, 4), tmp_path)
    for part, count in (("train", 8), ("dev", 4)):
        sentences = read_tagged(get_spec("ner"), names.folder / f"{part}.conll")
        assert len(sentences) == count
        assert all(len(words) == 6 for words in sentences.words)


def test_lines_between_documents_stay(tmp_path: Path) -> None:
    lines = "".join(f"-DOCSTART- O\n\nAnna{n} B-PER\n\nBerta{n} B-PER\n\n" for n in range(10))
    (tmp_path / "train.txt").write_text(lines)
    made = make_subset(PAPER_TASKS["ner"], {"train": tmp_path / "train.txt"}, (5, None), tmp_path / "out")
    sentences = read_tagged(get_spec("ner"), made.folder / "train.txt")
    assert made.rows == {"train": (5, 20)}
    (tmp_path / "latin.txt").write_bytes("Anna B-PER\nCaf\xe9 O\n".encode("latin-1"))
    with pytest.raises(InputError, match=r"latin\.txt:2: not UTF-8"):
        make_subset(PAPER_TASKS["ner"], {"train": tmp_path / "latin.txt"}, (5, None), tmp_path / "out")
    assert (len(sentences), len(set(sentences.documents or ()))) == (5, len(sentences.documents or ()))


def test_the_training_rows_of_names_have_each_entity_type_of_the_dev_rows(tmp_path: Path) -> None:
    """As WNUT-17 at scale smoke, where few rows do not have all six types."""
    kinds = ["PER"] * 47 + ["creative-work", "product", "group"]
    files = {part: tmp_path / f"{part}.conll" for part in ("train", "dev")}
    for name, order in (("train", kinds), ("dev", kinds[::-1])):
        files[name].write_text("".join(f"Anna{row}\tB-{kind}\nsat\tO\n\n" for row, kind in enumerate(order)))
    counted = make_subset(PAPER_TASKS["ner"], files, (5, 20), tmp_path / "out", write=False)
    made = make_subset(PAPER_TASKS["ner"], files, (5, 20), tmp_path / "out")
    chosen, of_dev = choose_rows(50, 5), choose_rows(50, 20)
    needed = {kinds[::-1][row] for row in of_dev} - {kinds[row] for row in chosen}
    assert needed  # the five rows alone would not do
    assert counted == made
    assert made.rows == {"train": (5 + len(needed), 50), "dev": (20, 50)}
    words = [sentence[0] for sentence in read_tagged(get_spec("ner"), made.folder / "train.conll").words]
    assert words == [f"Anna{row}" for row in sorted([*chosen, *(kinds.index(kind) for kind in needed)])]


def test_a_subset_is_known_from_its_note(paper_data: Path, tmp_path: Path) -> None:
    task = PAPER_TASKS["ner"]
    source, _ = find_source(task, paper_data) or (None, {})
    assert source
    made = subset(paper_data, "ner", (8, 4), tmp_path)
    note_subset(source, made, (8, 4))
    assert noted_subsets(task, (8, 4), tmp_path) == [(source, made)]
    assert noted_subsets(task, (9, 4), tmp_path) == []
    assert noted_subsets(PAPER_TASKS["wikigold"], (8, 4), tmp_path) == []


def test_a_subset_is_made_once_and_anew_of_other_files(paper_data: Path, tmp_path: Path) -> None:
    first = subset(paper_data, "sst2", (10, 6), tmp_path)
    written = (first.folder / "train.tsv").stat().st_mtime_ns
    assert subset(paper_data, "sst2", (10, 6), tmp_path) == first
    assert (first.folder / "train.tsv").stat().st_mtime_ns == written
    assert subset(paper_data, "sst2", (11, 6), tmp_path).digest != first.digest
    other = write_data(tmp_path / "other")
    path = other / "glue/SST-2/train.tsv"
    path.write_text(path.read_text() + "one more\t1\n")
    assert subset(other, "sst2", (10, 6), tmp_path).digest != first.digest


# ---------------------------------------------------------------- corpora


def corpus_sentences(corpus: Corpus) -> list[bytes]:
    count = np.ones(corpus.num_sentences, np.int32)
    shard, start, length = corpus.locate(np.arange(corpus.num_sentences), count)
    return [corpus.views[s][a : a + n].tobytes() for s, a, n in zip(shard, start, length, strict=True)]


def test_shuffled_sentences_are_the_same_in_another_order(own_corpus: Path, tmp_path: Path) -> None:
    shuffle_sentences(own_corpus, tmp_path / "a")
    shuffle_sentences(own_corpus, tmp_path / "b")
    shuffle_sentences(own_corpus, tmp_path / "c", seed=1)
    before, after = Corpus.open(own_corpus), Corpus.open(tmp_path / "a")
    assert sorted(corpus_sentences(before)) == sorted(corpus_sentences(after))
    assert corpus_sentences(before) != corpus_sentences(after)
    assert before.document_first().tolist() == after.document_first().tolist()
    assert before.tokenizer_hash == after.tokenizer_hash
    assert Corpus.open(tmp_path / "b").fingerprint == after.fingerprint != Corpus.open(tmp_path / "c").fingerprint
    with pytest.raises(InputError, match="a: exists already and is not an empty folder"):
        shuffle_sentences(own_corpus, tmp_path / "a")


def test_documents_equal_to_earlier_ones_are_left_out(tmp_path: Path, own_text: Path, own_tokenizer: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text(own_text.read_text("utf-8") + "\n\n" + own_text.read_text("utf-8"), "utf-8")
    build_corpus([text], tokenizer=own_tokenizer, out=tmp_path / "corpus", workers=1)
    before = Corpus.open(tmp_path / "corpus")
    shuffle_sentences(tmp_path / "corpus", tmp_path / "shuffled")
    after = Corpus.open(tmp_path / "shuffled")
    assert 2 * after.num_sentences == before.num_sentences
    assert len(after.duplicates) == 0


def test_corpora_that_are_given_are_taken_as_they_are(own_corpus: Path, tmp_path: Path) -> None:
    wanted = [("wordpiece", "documents"), ("wordpiece", "sentences"), ("bytepair", "documents")]
    corpora = make_corpora([str(own_corpus)], tmp_path / "out", vocab_size=400, kinds=wanted, build=True)
    assert corpora.folders["wordpiece", "documents"] == own_corpus
    assert corpora.folders["wordpiece", "sentences"].parent == tmp_path / "out"
    assert corpora.missing["bytepair", "documents"].startswith("--corpus: name a byte-pair corpus, or the text to")
    with pytest.raises(InputError, match=r"a second WordPiece corpus beside .*; name one of each kind"):
        make_corpora([str(own_corpus), str(own_corpus)], tmp_path, vocab_size=400, kinds=wanted, build=True)


def test_a_corpus_that_is_gone_is_known_from_its_note(own_corpus: Path, tmp_path: Path) -> None:
    kinds = [("wordpiece", "documents"), ("wordpiece", "sentences")]
    out = tmp_path / "out"
    made = make_corpora([str(own_corpus)], out, vocab_size=400, kinds=kinds, build=True)
    note_corpora(made, out)
    shutil.rmtree(made.folders["wordpiece", "sentences"])
    for inputs in ([], [own_corpus.name]):
        noted = make_corpora(inputs, out, vocab_size=400, kinds=kinds, build=False, use_notes=True)
        assert (noted.missing, set(noted.facts.values())) == ({}, set(made.facts.values()))
    other = make_corpora(["another"], out, vocab_size=400, kinds=kinds[:1], build=False, use_notes=True)
    (message,) = other.missing.values()
    assert message.endswith(f"--corpus another is not a corpus folder; the records are of {own_corpus.name}")
    note = json.loads((path := next(out.glob("wordpiece-documents-*.json"))).read_text())
    path.with_name("wordpiece-documents-0.json").write_text(json.dumps({**note, "name": "second"}))
    with pytest.raises(InputError, match=r"the records are of several corpora, second .*; name the folder of one"):
        make_corpora([], out, vocab_size=400, kinds=kinds, build=False, use_notes=True)
    chosen = make_corpora([own_corpus.name], out, vocab_size=400, kinds=kinds, build=False, use_notes=True)
    assert set(chosen.facts.values()) == set(made.facts.values())
    path.write_text(json.dumps({"name": "x"}))
    with pytest.raises(
        InputError, match=r"\.json: expected name, fingerprint, tokens, documents, vocab_size, got name"
    ):
        make_corpora([], out, vocab_size=400, kinds=kinds, build=False, use_notes=True)


def test_a_byte_pair_corpus_is_made_and_known_again(own_text: Path, tmp_path: Path) -> None:
    kind = ("bytepair", "documents")
    made = make_corpora([str(own_text)], tmp_path / "out", vocab_size=100, kinds=[kind], build=True).folders[kind]
    assert made == tmp_path / "out" / "bytepair-100"
    assert isinstance(Corpus.open(made).tokenizer, BPETokenizer)
    corpora = make_corpora([str(made)], tmp_path / "other", vocab_size=100, kinds=[kind], build=True)
    assert corpora.folders == {kind: made}
    there = make_corpora([], tmp_path / "out", vocab_size=100, kinds=[kind], build=False)
    assert there.folders == {kind: made}


def test_nothing_is_made_where_nothing_shall_be(own_text: Path, tmp_path: Path) -> None:
    wanted = [("wordpiece", "documents")]
    corpora = make_corpora([str(own_text)], tmp_path / "out", vocab_size=400, kinds=wanted, build=False)
    assert (corpora.folders, list(corpora.missing)) == ({}, wanted)
    assert not (tmp_path / "out").exists()


def test_the_text_of_a_folder_stays_what_it_is(own_text: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/made-of.json").write_text(json.dumps({"text": ["/another.txt"]}))
    with pytest.raises(InputError, match=r"the corpora in .* were built from /another.txt; choose another --out"):
        make_corpora([str(own_text)], tmp_path / "out", vocab_size=400, kinds=[("wordpiece", "documents")], build=True)
    with pytest.raises(InputError, match="no file or folder has this name or pattern"):
        make_corpora(["nowhere.txt"], tmp_path / "new", vocab_size=400, kinds=[("wordpiece", "documents")], build=True)
    assert not (tmp_path / "new").exists()


def test_a_text_that_is_gone_is_known_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/made-of.json").write_text(json.dumps({"text": [str(tmp_path / "gone.txt"), "hub:own/texts"]}))
    monkeypatch.chdir(tmp_path)
    paths = check_text(["gone.txt", "hub:own/texts"], tmp_path / "out")
    assert paths == [str(tmp_path / "gone.txt"), "hub:own/texts"]
    with pytest.raises(InputError, match="choose another --out"):
        check_text(["*.txt", "hub:own/texts"], tmp_path / "out")
    assert absolute_name("s3://b/x") == "s3://b/x"
