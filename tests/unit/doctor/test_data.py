"""Findings of the doctor about corpora and labelled tables that are broken on purpose, and about one batch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bertwright.corpus.checks import inspect_corpus
from bertwright.doctor import training as doctor_training
from bertwright.doctor.corpus import check_corpus, report_findings
from bertwright.doctor.data import check_data, fit_findings, labels_of_model
from bertwright.doctor.examine import Examination, Request, examine
from bertwright.doctor.findings import Finding
from bertwright.doctor.training import (
    BATCH_ROWS,
    chosen_rows,
    classifier_findings,
    overfit_batch,
    overfit_finding,
    pretraining_findings,
)
from bertwright.errors import InputError
from bertwright.model.encoder import init_weights
from bertwright.model.folder import SavedModel
from bertwright.tasks.classification.encoding import encode
from bertwright.tasks.classification.model import Classifier, padded
from bertwright.tasks.classification.spec import ClassificationTask, get_task
from bertwright.tasks.classification.task import CLASSIFICATION
from bertwright.tasks.multiple_choice.spec import SWAG
from bertwright.tasks.question_answering.spec import SQUAD2
from bertwright.tasks.spec import TaskSpec
from bertwright.tasks.tagging.spec import NER
from bertwright.text.vocabulary import Base
from bertwright.text.wordpiece import Tokenizer
from tests.support.doctor_patients import (
    CASED,
    LOWER,
    levels,
    named,
    random_sentences,
    small_config,
    write_corpus,
    write_model,
)

DOCUMENTS = [random_sentences(4, seed=seed) for seed in range(40)]


def corpus_levels(folder: Path, *, model: Tokenizer | None = None, quick: bool = True) -> dict[str, str]:
    return levels(check_corpus(folder, model=model, quick=quick)[2])


def test_a_whole_corpus_has_only_too_little_text(tmp_path: Path) -> None:
    write_corpus(tmp_path / "c", DOCUMENTS)
    corpus, matches, findings = check_corpus(tmp_path / "c", model=LOWER, quick=False)
    assert levels(findings) == {"size": "warning"}
    assert corpus is not None
    assert matches
    assert named(findings, "unknown").value == 0.0
    assert corpus_levels(tmp_path / "c", model=LOWER) == {}


def test_a_shard_that_lost_its_end_is_an_error(tmp_path: Path) -> None:
    write_corpus(tmp_path / "c", DOCUMENTS)
    shard = next((tmp_path / "c").glob("*.arrow"))
    shard.write_bytes(shard.read_bytes()[:-8])
    corpus, _, findings = check_corpus(tmp_path / "c", model=None, quick=True)
    assert corpus is None
    assert levels(findings) == {"opens": "error"}
    assert "truncated" in findings[0].text


def test_a_shard_whose_tokens_were_changed_is_an_error(tmp_path: Path) -> None:
    write_corpus(tmp_path / "c", DOCUMENTS)
    shard = next((tmp_path / "c").glob("*.arrow"))
    data = bytearray(shard.read_bytes())
    ids = LOWER.ids(DOCUMENTS[0][:1])[0]
    data[data.find(np.array(ids, np.uint16).tobytes())] ^= 1
    shard.write_bytes(data)
    assert corpus_levels(tmp_path / "c") == {"reads": "error"}


def test_the_model_s_tokenizer_another_one_and_one_that_grew(tmp_path: Path) -> None:
    grown = Tokenizer([*LOWER.pieces, "riv"], LOWER.rules, base=Base(hash=LOWER.hash, size=LOWER.vocab_size))
    write_corpus(tmp_path / "same", DOCUMENTS)
    write_corpus(tmp_path / "grown", DOCUMENTS, tokenizer=grown)
    _, matches, findings = check_corpus(tmp_path / "same", model=CASED, quick=True)
    assert levels(findings) == {"tokenizer": "error"}
    assert not matches
    assert corpus_levels(tmp_path / "grown", model=LOWER) == {"tokenizer": "note"}
    assert corpus_levels(tmp_path / "grown", model=grown) == {}


def test_lower_case_text_under_a_cased_vocabulary(tmp_path: Path) -> None:
    upper = [[sentence.capitalize() for sentence in document] for document in DOCUMENTS]
    write_corpus(tmp_path / "lower", DOCUMENTS, tokenizer=CASED)
    write_corpus(tmp_path / "upper", upper, tokenizer=CASED)
    assert corpus_levels(tmp_path / "lower") == {"case": "warning"}
    assert corpus_levels(tmp_path / "upper") == {}


def test_duplicates_few_many_and_uncounted(tmp_path: Path) -> None:
    twice = [*DOCUMENTS, *DOCUMENTS[:20]]
    write_corpus(tmp_path / "twice", twice)
    write_corpus(tmp_path / "kept", twice, keep_duplicates=True)
    findings = check_corpus(tmp_path / "twice", model=None, quick=True)[2]
    assert levels(findings) == {"duplicates": "note"}
    assert named(findings, "duplicates").value == pytest.approx(20 / 60)
    assert corpus_levels(tmp_path / "kept") == {"duplicates": "note"}


def test_unknown_pieces_are_reported_with_and_without_quick(tmp_path: Path) -> None:
    write_corpus(tmp_path / "c", [[*document, "река ночь"] for document in DOCUMENTS])
    assert corpus_levels(tmp_path / "c") == {"unknown": "warning"}
    assert corpus_levels(tmp_path / "c", quick=False)["unknown"] == "warning"


def test_the_warnings_of_inspect_come_through(tmp_path: Path) -> None:
    write_corpus(tmp_path / "c", [[sentence] for document in DOCUMENTS for sentence in document])
    report = inspect_corpus(tmp_path / "c")
    findings = list(report_findings(report))
    assert levels(findings) == {"single sentences": "warning", "size": "warning"}
    assert [f"{each.text}; {each.advice}" for each in findings if each.advice] == list(report.warnings)


def write_rows(path: Path, rows: Sequence[tuple[str, Any]]) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{text}\t{label}\n" for text, label in [("text", "label"), *rows]), "utf-8")
    return path


def healthy_rows(count: int = 60, *, seed: int = 0) -> list[tuple[str, str]]:
    return [(text, ("good", "bad")[row % 2]) for row, text in enumerate(random_sentences(count, seed=seed))]


def data_levels(folder: Path, kind: str = "classify") -> dict[str, str]:
    return levels(check_data(get_task(kind), folder)[1])


def test_healthy_data_have_nothing_wrong(tmp_path: Path) -> None:
    write_rows(tmp_path / "train.tsv", healthy_rows())
    write_rows(tmp_path / "dev.tsv", healthy_rows(20, seed=1))
    data, findings = check_data(get_task("classify"), tmp_path)
    assert levels(findings) == {}
    assert data is not None
    assert named(findings, "labels").value == {"bad": 30, "good": 30}
    assert data_levels(tmp_path / "train.tsv") == {"dev": "note"}


@pytest.mark.parametrize(
    ("rows", "wrong"),
    [
        ([*healthy_rows(), *healthy_rows()[:2]], {"duplicates": "note"}),
        ([*healthy_rows(), *healthy_rows()[:6]], {"duplicates": "warning"}),
        ([*healthy_rows(), (healthy_rows()[0][0].upper(), "bad")], {"duplicates": "note", "contradictions": "warning"}),
        ([*healthy_rows(), ("   ", "good")], {"empty texts": "warning"}),
        ([*healthy_rows(), ("\u200b", "good")], {"empty texts": "warning"}),
        ([*healthy_rows(), ("a b c", "ugly")], {"rare labels": "warning"}),
        ([*healthy_rows(), *[(f"a b {n}", "Good") for n in range(5)]], {"alike labels": "warning"}),
        ([(text, "good") for text, _ in healthy_rows()] + healthy_rows(12, seed=1)[1::2], {"labels": "note"}),
    ],
)
def test_rows_that_are_wrong(tmp_path: Path, rows: list[tuple[str, str]], wrong: dict[str, str]) -> None:
    write_rows(tmp_path / "train.tsv", rows)
    write_rows(tmp_path / "dev.tsv", [row for row in healthy_rows(20, seed=2) if row[1] in dict(map(reversed, rows))])
    assert data_levels(tmp_path) == wrong


def test_places_are_those_of_the_lines(tmp_path: Path) -> None:
    rows = healthy_rows()
    train = write_rows(tmp_path / "train.tsv", [*rows, (rows[4][0], "bad"), ("", "good")])
    dev = write_rows(tmp_path / "dev.tsv", [*healthy_rows(20, seed=1), rows[7], rows[2]])
    findings = check_data(get_task("classify"), tmp_path)[1]
    assert named(findings, "contradictions").text.endswith(f"{train}:6 (good) and {train}:62 (bad)")
    assert named(findings, "empty texts").text.endswith(f"{train}:63")
    assert named(findings, "duplicates").text.endswith(f"{train}:62")
    assert named(findings, "dev, leak").text == f"rows that also stand in train: 2 of 22, first {dev}:22 and {train}:9"
    assert named(findings, "dev, leak").level == "error"


def test_a_leak_of_one_row_in_hundreds_is_a_warning(tmp_path: Path) -> None:
    write_rows(tmp_path / "train.tsv", healthy_rows())
    write_rows(tmp_path / "dev.tsv", [*healthy_rows(400, seed=1), healthy_rows()[0]])
    assert data_levels(tmp_path)["dev, leak"] == "warning"


def test_labels_that_train_never_has(tmp_path: Path) -> None:
    write_rows(tmp_path / "train.tsv", healthy_rows())
    write_rows(tmp_path / "dev.tsv", [*healthy_rows(20, seed=1), ("a b c", "ugly")])
    findings = check_data(get_task("classify"), tmp_path)[1]
    assert levels(findings) == {"dev": "error"}
    assert "unknown label 'ugly'" in named(findings, "dev").text
    known = get_task("classify").model_copy(update={"labels": ("good", "bad", "ugly")})
    assert levels(check_data(known, tmp_path)[1]) == {"rare labels": "warning", "dev, labels": "error"}


SETS = ("", "warm", "wet", "warm|wet", "warm")


def several(count: int = 60, *, seed: int = 0) -> list[tuple[str, str]]:
    """Return rows of which a fifth has no label, and a fifth has two."""
    return [(text, SETS[row % 5]) for row, text in enumerate(random_sentences(count, seed=seed))]


def test_rows_of_any_number_of_labels(tmp_path: Path) -> None:
    rows = several()
    train = write_rows(tmp_path / "train.tsv", [*rows, (rows[3][0], "wet")])
    write_rows(tmp_path / "dev.tsv", several(20, seed=1))
    findings = check_data(get_task("multilabel"), tmp_path)[1]
    assert levels(findings) == {"no label": "note", "duplicates": "note", "contradictions": "warning"}
    assert named(findings, "labels").value == {"warm": 36, "wet": 25}
    assert named(findings, "labels").text == "warm 59.0%, wet 41.0%"
    assert named(findings, "no label").value == 12
    assert named(findings, "contradictions").text.endswith(f"{train}:5 (warm, wet) and {train}:62 (wet)")
    write_rows(train, [*rows, (rows[0][0], "none"), *((text, "none") for text, _ in several(4, seed=2))])
    findings = check_data(get_task("multilabel"), tmp_path)[1]
    assert named(findings, "contradictions").text.endswith(f"{train}:2 (no label) and {train}:62 (none)")
    write_rows(tmp_path / "train.tsv", [(text, "warm") for text, _ in rows] + several(4, seed=2)[2:3])
    findings = check_data(get_task("multilabel"), tmp_path)[1]
    assert levels(findings) == {"labels": "note", "rare labels": "warning"}
    assert named(findings, "labels").text.endswith("nearly every row has warm")


def test_what_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    assert data_levels(tmp_path) == {"reads": "error"}
    write_rows(tmp_path / "train.tsv", [*healthy_rows(), ("one\ttoo", "many")])
    assert data_levels(tmp_path) == {"reads": "error"}


def test_numbers_that_vary_and_numbers_that_do_not(tmp_path: Path) -> None:
    varied = [(text, row / 7) for row, (text, _) in enumerate(healthy_rows())]
    assert data_levels(write_rows(tmp_path / "a.tsv", varied), "regress") == {"dev": "note"}
    constant = [(text, 1.5) for text, _ in varied]
    assert data_levels(write_rows(tmp_path / "b.tsv", constant), "regress") == {"dev": "note", "numbers": "error"}


def fitted(folder: Path, rows: list[tuple[str, str]], tokenizer: Tokenizer, max_length: int) -> list[Finding]:
    data, _ = check_data(get_task("classify"), write_rows(folder / "train.tsv", rows))
    assert data is not None
    return list(fit_findings(data, tokenizer, max_length=max_length))


def test_how_texts_fit_a_vocabulary_and_a_length(tmp_path: Path) -> None:
    assert levels(fitted(tmp_path, healthy_rows(), LOWER, 16)) == {}
    cut = fitted(tmp_path, healthy_rows(), LOWER, 8)
    assert levels(cut) == {"length": "warning"}
    lengths = sorted(len(text.split()) + 2 for text, _ in healthy_rows())
    assert named(cut, "length").value["largest"] == lengths[-1]
    assert named(cut, "length").text.startswith("train: mean ")
    assert named(cut, "length").value["share"] == pytest.approx(np.mean(np.array(lengths) > 8))
    strange = [(f"{text} ночь", label) for text, label in healthy_rows()]
    assert levels(fitted(tmp_path, strange, LOWER, 16)) == {"unknown": "warning"}
    assert levels(fitted(tmp_path, healthy_rows(), CASED, 16)) == {"case": "warning"}
    upper = [(text.capitalize(), label) for text, label in healthy_rows()]
    assert levels(fitted(tmp_path, upper, CASED, 16)) == {}


def saved_with(labels: tuple[str, ...]) -> SavedModel:
    weights = {"classifier.linear.weight": np.zeros((len(labels), 4))}
    return SavedModel("m", small_config(), weights, Path("m"), "BertForSequenceClassification", labels)  # type: ignore[arg-type]


def test_labels_of_the_model_by_name() -> None:
    task = get_task("classify").model_copy(update={"labels": ("bad", "good")})
    assert levels(list(labels_of_model(saved_with(("good", "bad")), task))) == {}
    assert levels(list(labels_of_model(saved_with(("good", "poor")), task))) == {"labels, model": "warning"}
    assert list(labels_of_model(SavedModel("m", small_config(), None, Path("m")), task)) == []


def trained_on(
    rows: Sequence[tuple[str, Any]], folder: Path, *, kind: str = "classify", **config: Any
) -> list[Finding]:
    """Return the findings of training random weights on one batch."""
    data, _ = check_data(get_task(kind), write_rows(folder / "train.tsv", rows))
    assert data is not None
    saved = SavedModel("random:small", small_config(**config), None, folder)
    return list(classifier_findings(saved, LOWER, data.task, data.train, max_length=32))


def test_training_overfits_one_batch(tmp_path: Path) -> None:
    findings = trained_on(healthy_rows(), tmp_path)
    assert levels(findings) == {}
    assert named(findings, "first loss").value["loss"] == pytest.approx(np.log(2), rel=0.1)
    assert named(findings, "one batch").value["last"] < 0.05


def test_training_overfits_numbers(tmp_path: Path) -> None:
    rows = [(text, row % 5) for row, (text, _) in enumerate(healthy_rows(16))]
    assert levels(trained_on(rows, tmp_path, kind="regress")) == {}


def test_training_overfits_sets_of_labels(tmp_path: Path) -> None:
    findings = trained_on(several(), tmp_path, kind="multilabel")
    assert levels(findings) == {}
    assert 0.9 < named(findings, "one batch").value["first"] < 1.3
    assert "of the loss of guessing on 32 rows" in named(findings, "one batch").text
    rows = [(text, names) for text, _ in healthy_rows(16) for names in ("warm", "wet")]
    both = trained_on(rows, tmp_path, kind="multilabel")
    assert levels(both) == {"one batch": "error"}
    assert "different labels" in named(both, "one batch").advice
    alike = trained_on([("the same text", f"l{row % 100}") for row in range(300)], tmp_path, kind="multilabel")
    assert levels(alike) == {"one batch": "error"}  # always "no label" is right for 99 of 100 labels


def test_labels_that_cannot_be_learned_are_an_error(tmp_path: Path) -> None:
    texts = [text for text, _ in healthy_rows(16)]
    findings = trained_on([(text, label) for text in texts for label in ("good", "bad")], tmp_path)
    assert levels(findings) == {"one batch": "error"}
    assert "16 texts of the batch are the same pieces with different labels" in named(findings, "one batch").advice
    assert named(findings, "one batch").value["last"] == pytest.approx(np.log(2), rel=0.2)


def test_a_head_that_begins_far_from_guessing_is_reported(tmp_path: Path) -> None:
    findings = trained_on(healthy_rows(), tmp_path, initializer_range=1.0)
    assert levels(findings)["first loss"] == "warning"
    assert named(findings, "first loss").value["loss"] > 1.5 * np.log(2)


def test_the_head_is_none_that_fine_tuning_began_with(tmp_path: Path) -> None:
    """An encoder that was tuned with the head of seed 0 fits that head: only another head starts at guessing."""
    data, _ = check_data(get_task("classify"), write_rows(tmp_path / "train.tsv", healthy_rows(32)))
    assert data is not None
    model = Classifier(small_config(), 2)
    init_weights(model, 0.02, torch.Generator().manual_seed(0))
    head = model.classifier.linear.weight.detach().clone()
    encoded = encode(LOWER, data.train.texts_a, max_length=32)
    rows = padded(encoded, range(32), pad_id=LOWER.pad_id, targets=data.train.targets)
    overfit_batch(CLASSIFICATION.trainable(data.task, model), rows, term="loss", rate=1e-3, goal=0.01)
    weights = model.state_dict()
    with torch.no_grad():
        model.classifier.linear.weight.copy_(head)
        model.classifier.linear.bias.zero_()
        known = float(torch.nn.functional.cross_entropy(model(rows), rows.targets))
    saved = SavedModel("tuned", small_config(), weights, tmp_path)
    findings = list(classifier_findings(saved, LOWER, data.task, data.train, max_length=32))
    assert known < 0.5 * np.log(2)
    assert levels(findings) == {}


def test_masked_lm_begins_at_guessing_and_learns_a_batch(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "c", DOCUMENTS)
    findings = list(pretraining_findings(small_config(), corpus))
    assert levels(findings) == {}
    assert named(findings, "first loss").value["loss"] == pytest.approx(np.log(LOWER.vocab_size), rel=0.1)
    assert not (tmp_path / "c" / "plans").exists()
    wide = list(pretraining_findings(small_config(initializer_range=0.5), corpus))
    assert levels(wide)["first loss"] == "warning"


def test_a_batch_for_which_time_was_too_short_is_no_error() -> None:
    falling = doctor_training.BatchTraining({"loss": 0.7}, {"loss": 0.5}, steps=4, seconds=61.0, in_time=False)
    assert overfit_finding(falling, "loss", rows=32).level == "note"
    rising = doctor_training.BatchTraining({"loss": 0.7}, {"loss": 0.9}, steps=4, seconds=61.0, in_time=False)
    assert overfit_finding(rising, "loss", rows=32).level == "error"


def test_the_batch_has_every_label() -> None:
    task: ClassificationTask = get_task("classify").model_copy(update={"labels": ("a", "b", "c")})
    targets = np.array([0] * 500 + [1] * 3 + [2] * 400)
    rows = chosen_rows(targets, task)
    assert len(rows) == BATCH_ROWS
    assert np.bincount(targets[rows]).tolist() == [15, 3, 14]
    assert rows[:15].tolist() == list(range(15))
    numbers = chosen_rows(np.linspace(5, -5, 1000), get_task("regress"))
    assert {0, 999} <= set(numbers.tolist())


def test_what_was_opened_goes_into_training(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m")
    data = write_rows(tmp_path / "train.tsv", healthy_rows())
    examination = Examination(Request(model=str(model), data=data))
    examination.model()
    assert {each.name for each in examination.read_data()} >= {"length", "unknown", "case"}
    assert levels(examination.training()) == {}
    bare = Examination(Request(model=str(write_model(tmp_path / "b", architecture="BertForMaskedLM")), data=data))
    bare.model()
    bare.read_data()
    assert levels(bare.training()) == {}
    broken = Examination(Request(model=str(tmp_path / "absent"), data=data))
    broken.model()
    broken.read_data()
    assert levels(broken.training()) == {"one batch": "note"}


@pytest.mark.parametrize(
    ("task", "architecture"),
    [(SQUAD2, "BertForQuestionAnswering"), (SWAG, "BertForMultipleChoice"), (NER, "BertForTokenClassification")],
)
def test_a_model_of_another_kind_of_task_brings_its_task(tmp_path: Path, task: TaskSpec, architecture: str) -> None:
    """Files that its task cannot read are an error; a table for the same model, with its columns named, is checked."""
    extra = {"task": task.model_dump(mode="json"), "max_length": 16}
    model = str(write_model(tmp_path / "m", architecture=architecture, extra=extra))
    (tmp_path / "train.json").write_text('{"data": []}')
    examination = Examination(Request(model=model, data=tmp_path / "train.json"))
    examination.model()
    assert levels(examination.read_data()) == {"reads": "error"}
    assert examination.training() == []
    data = write_rows(tmp_path / "train.tsv", healthy_rows())
    named = Examination(Request(model=model, data=data, text=("text",)))
    named.model()
    assert {each.name for each in named.read_data()} >= {"length", "unknown", "case"}


@pytest.mark.parametrize("kind", ["classify", "multilabel", "regress"])
def test_a_model_brings_its_own_task_and_columns(tmp_path: Path, kind: str) -> None:
    task_of_model = get_task(kind).model_copy(update={"text": ("review",), "label": "verdict", "labels": ()})
    train = tmp_path / "train.tsv"
    rows = "".join(f"{text}\t{row % 2}\t{(row + 1) % 2}\n" for row, (text, _) in enumerate(healthy_rows()))
    train.write_text(f"review\tverdict\tother\n{rows}")

    def reading(name: str = kind, **request: Any) -> tuple[str, str]:
        """Return level and text of the finding "reads", with a model whose task has that name."""
        extra = {"task": task_of_model.model_dump(mode="json") | {"name": name}, "max_length": 16}
        model = write_model(
            tmp_path / f"{len(list(tmp_path.iterdir()))}", architecture="BertForSequenceClassification", extra=extra
        )
        examination = Examination(Request(model=str(model), data=train, **request))
        examination.model()
        reads = named(examination.read_data(), "reads")
        assert examination.task().kind == task_of_model.kind or request.get("task")
        return reads.level, reads.text

    assert reading() == ("ok", f"{train}: 60 rows, review → verdict")
    assert reading(task=kind) == reading()
    assert reading(label="other") == ("ok", f"{train}: 60 rows, review → other")
    assert reading("of-another-module") == reading()
    assert reading(task="sst2")[0] == "error"


def test_a_note_of_another_version_is_no_task(tmp_path: Path) -> None:
    extra = {"task": {"name": "classify", "nobody": "knows"}, "max_length": 16}
    model = write_model(tmp_path / "m", architecture="BertForSequenceClassification", extra=extra)
    data = write_rows(tmp_path / "train.tsv", healthy_rows())
    examination = Examination(Request(model=str(model), data=data))
    examination.model()
    assert named(examination.read_data(), "reads").level == "ok"
    with pytest.raises(InputError, match="there is no task ''; there are: classify, "):
        examine(Request(data=data, task=""))


def test_rows_of_pairs_are_compared_as_pairs(tmp_path: Path) -> None:
    task = get_task("classify").model_copy(update={"text": ("a", "b")})
    lines = ["a\tb\tlabel", "x y\tz\tgood", "x\ty z\tbad", "x y\tz\tbad", "q\t\tgood"]
    (tmp_path / "train.tsv").write_text("\n".join(lines) + "\n")
    findings = check_data(task, tmp_path)[1]
    assert named(findings, "contradictions").value == 1
    assert named(findings, "empty texts").value == 1
