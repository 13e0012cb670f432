"""Byte pairs beyond the vocabulary: corpora, rows of tasks, the commands, and where only BERT's will do."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from bertwright.cli import main
from bertwright.corpus.build import build_corpus
from bertwright.corpus.checks import inspect_corpus, verify
from bertwright.corpus.merge import merge_corpora
from bertwright.corpus.shards import Corpus
from bertwright.doctor.corpus import check_corpus
from bertwright.errors import InputError
from bertwright.objectives.dataset import Examples
from bertwright.objectives.settings import ExampleSettings
from bertwright.tasks.classification.encoding import encode
from bertwright.tasks.multiple_choice.spec import Choices, encode_choices
from bertwright.tasks.question_answering.data import Question, Questions
from bertwright.tasks.question_answering.spec import SQUAD1
from bertwright.tasks.question_answering.task import span_batch
from bertwright.tasks.question_answering.windows import encode_windows
from bertwright.tasks.tagging.model import windows_of
from bertwright.text.bpe import BPETokenizer, train_bpe
from bertwright.text.document import TextSettings
from bertwright.text.documents import read_documents
from bertwright.text.wordpiece import train_wordpiece
from tests.support.eight_sentences import made_of
from tests.support.texts import OWN_TEXT

WORDS = train_bpe([OWN_TEXT.read_text("utf-8")], merges=300)
START, BETWEEN, END = WORDS.special_ids[1:]


@pytest.fixture(scope="module")
def merged_corpora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two corpora, the second with a document of the first and one of its own, and both merged."""
    folder = tmp_path_factory.mktemp("made")
    WORDS.save(folder / "tok")
    first = OWN_TEXT.read_text("utf-8").split("\n\n")[0]
    (folder / "again.txt").write_text(f"{first}\n\nA lamp 한 ☃ of its own, _start_ of nothing.\n", "utf-8")
    for text, part in ((OWN_TEXT, "part-1"), (folder / "again.txt", "part-2")):
        build_corpus([text], tokenizer=folder / "tok", out=folder / part, workers=1)
    merge_corpora([folder / "part-1", folder / "part-2"], folder / "corpus")
    return folder


def test_a_corpus_holds_the_ids_of_its_text(merged_corpora: Path) -> None:
    corpus = Corpus.open(merged_corpora / "corpus")
    assert isinstance(corpus.tokenizer, BPETokenizer)
    assert corpus.tokenizer.hash == corpus.manifest.tokenizer == WORDS.hash
    texts = [
        " ".join(each.paragraphs)
        for at in (OWN_TEXT, merged_corpora / "again.txt")
        for each in read_documents(at, TextSettings())
    ]
    expected = [id for ids in WORDS.ids(texts) for id in ids]
    assert np.concatenate([tokens for _, tokens in corpus.blocks()]).tolist() == expected
    assert corpus.duplicates.tolist() == [corpus.num_documents - 2]
    assert not set(expected) & {START, BETWEEN, END}


def test_it_is_checked_and_reported_on(merged_corpora: Path, tmp_path: Path) -> None:
    assert verify(merged_corpora / "corpus").num_documents == Corpus.open(merged_corpora / "corpus").num_documents
    report = inspect_corpus(merged_corpora / "corpus")
    assert report.vocab_size == WORDS.vocab_size
    assert "  <unk>       " in report.render()
    assert "[UNK]" not in report.render()
    assert report.unknown_share > 0
    shutil.copytree(merged_corpora / "part-1", tmp_path / "other")
    shutil.rmtree(tmp_path / "other" / "tokenizer")
    BPETokenizer(WORDS.pieces, WORDS.merges[:-1]).save(tmp_path / "other" / "tokenizer")
    with pytest.raises(InputError, match=r"expected the tokenizer that made the corpus"):
        verify(tmp_path / "other")
    with pytest.raises(InputError, match=r"expected the tokenizer that made the corpus"):
        merge_corpora([tmp_path / "other", merged_corpora / "part-2"], tmp_path / "merged")
    for path in (tmp_path / "other").glob("*.hashes"):
        path.unlink()
    with pytest.raises(InputError, match=r"other/shard-00000\.hashes: there is no such file; .*--keep-duplicates"):
        merge_corpora([tmp_path / "other", merged_corpora / "part-2"], tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


def test_the_doctor_looks_at_it(merged_corpora: Path) -> None:
    bert = train_wordpiece([OWN_TEXT.read_text("utf-8")], vocab_size=500)
    for model, level in ((WORDS, "ok"), (bert, "error")):
        corpus, matches, findings = check_corpus(merged_corpora / "corpus", model=model, quick=True)
        levels = {finding.name: finding.level for finding in findings}
        assert corpus is not None
        assert matches == (level == "ok")
        assert (levels["tokenizer"], levels["case"]) == (level, "ok")
        assert any("is <unk> (up to" in finding.text for finding in findings)


def test_masked_lm_needs_another_vocabulary(
    merged_corpora: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (
        r"corpus: expected a tokenizer with .MASK., got byte pairs .* masked LM needs a WordPiece or byte-level one "
        r"\(bertwright tokenizer train"
    )
    with pytest.raises(InputError, match=words):
        Examples(Corpus.open(merged_corpora / "corpus"), ExampleSettings(), length=32, seed=0)
    arguments = ["pretrain", "--corpus", str(merged_corpora / "corpus"), "--out", str(tmp_path / "run"), "--steps", "2"]
    assert main(arguments) == 2
    assert "bert needs WordPiece (bertwright tokenizer train" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_rows_of_texts_pairs_and_choices() -> None:
    (a, b) = WORDS.ids(["The harbour", "a lamp"])
    assert [row.tolist() for row in encode(WORDS, ["The harbour"], max_length=32).ids] == [[START, *a, END]]
    pairs = encode(WORDS, ["The harbour"], ["a lamp"], max_length=32)
    assert pairs.ids[0].tolist() == [START, *a, BETWEEN, *b, END]
    assert pairs.first.tolist() == [len(a) + 2]
    short = encode(WORDS, ["The harbour"] * 2, ["a lamp"] * 2, max_length=6)
    assert [(len(row), row[0], row[-1]) for row in short.ids] == [(6, START, END)] * 2
    rows = Choices(("The harbour",), (("a lamp", "The harbour"),), np.array([0]), "here", (1,))
    assert [row.tolist() for row in encode_choices(WORDS, rows, max_length=32).ids] == [
        [START, *a, BETWEEN, *b, END],
        [START, *a, BETWEEN, *a, END],
    ]


def test_rows_of_words_and_of_questions() -> None:
    tagged = windows_of(WORDS, made_of([["The", "harbour"]]), context="off", max_length=32)
    (the, harbour) = WORDS.ids(["The", "harbour"])
    assert tagged.ids[0].tolist() == [START, *the, *harbour, END]
    assert tagged.at[0].tolist() == [1, 1 + len(the)]
    question = Question("1", "a lamp", "The harbour", (("harbour", 4),))
    windows = encode_windows(WORDS, Questions((question,), "1.1", "here"), SQUAD1, max_length=64, targets=True)
    question_ids = WORDS.ids(["a lamp"])[0]
    assert windows.row(0).tolist() == [START, *question_ids, BETWEEN, *the, *harbour, END]
    assert windows.target.tolist() == [
        [len(question_ids) + 2 + len(the), len(question_ids) + 1 + len(the) + len(harbour)]
    ]
    batch = span_batch(windows, np.array([0]), pad_id=WORDS.pad_id)
    assert (batch.ids.shape, int(batch.segments.sum()), bool(batch.mask.all())) == (
        (1, len(windows.row(0))),
        len(the + harbour) + 1,
        True,
    )


def test_the_command_learns_byte_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["tokenizer", "train", str(OWN_TEXT), *"--kind bpe --merges 120 --out".split(), str(tmp_path / "tok")]
    assert main(arguments) == 0
    made = BPETokenizer.load(tmp_path / "tok")
    assert len(made.merges) == 120
    assert made.hash in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--vocab-size", "500", "--merges", "9"], "--merges 9: needs --kind bpe"),
        (["--kind", "bpe", "--vocab-size", "500"], "--vocab-size 500: is not for --kind bpe; give the number of"),
        (["--kind", "bpe", "--cased"], "--cased: needs WordPiece"),
        (["--kind", "bpe", "--strip-accents"], "--strip-accents: needs WordPiece"),
        (["--kind", "bpe", "--merges", "0"], "0 merges: expected 1 or more"),
    ],
)
def test_options_of_the_other_kind_are_refused(
    options: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tokenizer", "train", str(OWN_TEXT), *options, "--out", str(tmp_path / "tok")]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "tok").exists()


def test_what_byte_pairs_cannot_is_refused(
    merged_corpora: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    assert main(["tokenizer", "extend", str(merged_corpora / "tok"), str(OWN_TEXT), "--add", "5", "--out", out]) == 2
    assert "only a WordPiece vocabulary is extended" in capsys.readouterr().err
    assert main(["tokenizer", "import", str(merged_corpora / "tok" / "vocab.json"), "--out", out]) == 2
    assert "A byte-pair vocabulary needs no import" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
