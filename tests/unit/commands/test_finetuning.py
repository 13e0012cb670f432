"""Finetune, evaluate and predict on the command line: early refusals, and messages that come once."""

import csv
import json
import warnings
from pathlib import Path
from typing import Any

import pytest

from bertwright.cli import main
from bertwright.model.bert import Bert
from bertwright.model.folder import save_model
from bertwright.serving.explanations import explanation_json
from bertwright.serving.predictor import load
from bertwright.tasks import inference
from bertwright.tasks.classification.model import Classifier
from bertwright.tasks.classification.spec import ClassificationTask
from bertwright.tasks.multiple_choice.spec import SWAG
from bertwright.tasks.question_answering.spec import SQUAD1
from bertwright.tasks.tagging.model import Tagger
from bertwright.tasks.tagging.spec import TaggingTask
from bertwright.text.wordpiece import Tokenizer, train_wordpiece
from tests.support.commands import run_json
from tests.support.encoders import classifier_config, save_classifier, small_classifier


@pytest.fixture
def working_folder(tmp_path: Path, own_text: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with a vocabulary and small files of several kinds."""
    monkeypatch.chdir(tmp_path)
    train_wordpiece([own_text.read_text("utf-8")], vocab_size=400).save(tmp_path / "tok")
    rows = "".join(f"the {'large' if n % 2 else 'small'} house {n}\t{'ab'[n % 2]}\n" for n in range(24))
    Path("rows.tsv").write_text("text\tlabel\n" + rows)
    Path("words.conll").write_text("".join(f"house O\nParis B-LOC\nno{n} O\n\n" for n in range(12)))
    Path("words.jsonl").write_text("".join(f'{{"tokens": ["a", "b{n}"], "tags": ["x", "y"]}}\n' for n in range(12)))
    return tmp_path


def run_line(text: str) -> int:
    return main(text.split())


TUNE = "--model random:tiny --tokenizer tok --out run --threads 1 --epochs 1 --batch-size 8"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("classify --data rows.tsv --text-column text --text-column text", "--text-column text: given twice"),
        ("classify --data rows.tsv --text-column label", "rows.tsv: column 'label' cannot be both text and"),
        ("regress --data rows.tsv --text-column label", "rows.tsv: column 'label' cannot be both text and"),
        ("sst2 --data rows.tsv --text-column text --label-column text", "'text' cannot be both text and label"),
        ("pos --data words.jsonl --text-column tags", "words.jsonl: field 'tags' cannot be both"),
        ("classify --data rows.tsv --max-length 0", "--max-length 0: Input should be greater than or equal to 8"),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(
    working_folder: Path, arguments: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_line(f"finetune {arguments} {TUNE}") == 2
    assert words in capsys.readouterr().err
    assert not Path("run").exists()


def test_which_file_is_trained_on_is_reported_once(working_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("codah").mkdir()
    rows = "".join(f"Who?,A man {n},sits,stands,{n % 2}\n" for n in range(12))
    Path("codah/codah-train.csv").write_text("sent1,sent2,ending0,ending1,label\n" + rows)
    assert run_line(f"finetune swag --data codah {TUNE}") == 0
    stderr = capsys.readouterr().err
    assert stderr.count("training on codah-train.csv") == 1
    assert stderr.count("no dev file, so a tenth of the rows") == 1


def test_a_dirty_table_under_another_name_is_trained_measured_and_checked(
    working_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The hints of the messages name options that finetune, evaluate and doctor have."""
    rows = Path("rows.tsv").read_text("utf-8")
    Path("rows.dat").write_bytes(rows.encode() + b"no label\t\n\t\ncaf\xe9\ta\n")
    tune, evaluate = f"finetune classify --data rows.dat {TUNE}", "evaluate classify --model run --data rows.dat"
    check = "doctor --quick --data rows.dat"
    assert run_line(tune) == 2
    assert "rows.dat: not a table's name" in (error := capsys.readouterr().err)
    assert "or add --input-format" in error
    assert run_line(f"{tune} --input-format tsv") == 2
    assert "rows.dat:28: not UTF-8 text (byte 4 of the cell)" in capsys.readouterr().err
    assert run_line(f"{check} --input-format tsv") == 1
    assert "rows.dat:28: not UTF-8 text" in capsys.readouterr().out
    assert run_line("doctor --quick --input-format tsv") == 2
    assert "describe --data PATH, and it is missing" in capsys.readouterr().err
    reading = "--input-format tsv --on-error skip"
    counts = "3 rows are left out: 1 not UTF-8 text, 1 without a label, 1 without a text"
    assert run_line(f"{tune} {reading}") == 0
    assert counts in capsys.readouterr().err
    measured, _ = run_json(capsys, *f"{evaluate} {reading}".split())
    assert (measured["examples"], measured["left_out"]) == (2, 3)  # the tenth that training kept
    checked, _ = run_json(capsys, *f"{check} {reading}".split())
    (finding,) = [finding for finding in checked["findings"] if finding["name"] == "bad rows"]
    assert (finding["level"], finding["value"]["without a label"], sum(finding["value"].values())) == ("warning", 1, 3)


def test_explanations_are_written_beside_the_answers(
    working_folder: Path, own_tokenizer: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object in JSON lines and JSON as text in a table; refused where a file has no place for them."""
    task = ClassificationTask(name="t", text=("text",), labels=("a", "b"))
    config = classifier_config(Tokenizer.load(own_tokenizer).vocab_size)
    save_classifier(Path("m"), small_classifier(config, 2), task, own_tokenizer, 32)
    Path("few.tsv").write_text("text\tlabel\nthe small house\ta\nthe large house\tb\n", "utf-8")
    predict = "predict --model m --input few.tsv --precision fp32 --explain"
    assert run_line(f"{predict} gradients --output out.jsonl") == 0
    assert run_line(f"{predict} occlusion --explain-baseline zero --output out.csv") == 0
    objects = [json.loads(line) for line in Path("out.jsonl").read_text("utf-8").splitlines()]
    model = load("m", precision="fp32")
    with Path("out.csv").open(newline="", encoding="utf-8") as stream:
        cells = [json.loads(row["explanation"]) for row in csv.DictReader(stream)]
    for index in (0, 1):
        text = objects[index]["text"]
        for written, expected in (
            (objects[index]["explanation"], model.explain(text)),
            (cells[index], model.explain(text, method="occlusion", baseline="zero")),
        ):
            assert written == explanation_json(expected)
            assert (written["answer"], written["method"]) == (objects[index]["predicted_label"], expected.method)
            assert [text[word["start"] : word["end"]] for word in written["words"]] == text.split()
    monkeypatch.setattr(inference, "multiplies_bytes", lambda: False)
    with warnings.catch_warnings(record=True) as caught:
        assert (
            run_line("predict --model m --input few.tsv --output int8.jsonl --precision int8 --explain gradients") == 0
        )
    assert (capsys.readouterr().err.count("int8: this processor"), caught) == (1, [])
    assert run_line("predict --model m --input few.tsv --explain-baseline zero") == 2
    assert "--explain-baseline: is for --explain gradients or occlusion" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        run_line(f"{predict} lime")


def test_explanations_of_tags_questions_and_choices(
    working_folder: Path, own_tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = classifier_config(Tokenizer.load(own_tokenizer).vocab_size)
    tags = TaggingTask(name="ner", scheme="iob2", labels=("O", "B-LOC", "I-LOC"))
    modules: dict[str, tuple[Any, Any, Any]] = {
        "tags": (tags, Tagger(config, 3), "BertForTokenClassification"),
        "squad": (SQUAD1, Bert(config, "BertForQuestionAnswering"), "BertForQuestionAnswering"),
        "swag": (SWAG, Classifier(config, 1), "BertForMultipleChoice"),
    }
    for name, (task, module, architecture) in modules.items():
        extra = {"task": task.model_dump(mode="json"), "max_length": 64}
        labels = tags.labels if name == "tags" else ()
        common: dict[str, Any] = {"config": config, "tokenizer": own_tokenizer, "labels": labels}
        save_model(Path(name), module, architecture=architecture, extra=extra, **common)
    Path("lines.txt").write_text("The harbour is quiet\n\n", "utf-8")
    question = {"id": "q", "question": "Who?", "answers": []}
    paragraph = {"context": "The tower and the bridge.", "qas": [question]}
    Path("q.json").write_text(json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": [paragraph]}]}))
    Path("c.jsonl").write_text(json.dumps({"context": "The harbour", "choices": ["is quiet", "sings"]}) + "\n")
    inputs: dict[str, Any] = {
        "tags": ("lines.txt --raw", "The harbour is quiet"),
        "squad": ("q.json", ("Who?", paragraph["context"])),
        "swag": ("c.jsonl", ("The harbour", ("is quiet", "sings"))),
    }
    for name, (source, value) in inputs.items():
        command = f"predict --model {name} --precision fp32 --explain gradients"
        assert run_line(f"{command} --input {source} --output {name}.jsonl") == 0
        lines = [json.loads(line) for line in Path(f"{name}.jsonl").read_text("utf-8").splitlines()]
        assert lines[0]["explanation"] == explanation_json(load(name, precision="fp32").explain(value))
        if name == "tags":
            assert lines[1]["explanation"] is None
    for refused in ("--model tags --input words.conll", "--model squad --input q.json --output folder"):
        assert run_line(f"predict {refused} --explain gradients") == 2
        assert "has no place for explanations" in capsys.readouterr().err
