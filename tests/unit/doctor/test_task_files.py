"""Baselines of choices, questions and tags before any training: those that a fine-tuning prints."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import run_json

CONTEXT = "Ada lives in Oslo. Bo lives in Rome."
SENTENCE = "sentence with most words of the question"
"""Name of the baseline of questions."""


def data_findings(capsys: pytest.CaptureFixture[str], *arguments: str | Path, code: int = 0) -> dict[str, Any]:
    """Run the doctor on data; return its findings about them by name."""
    result, _ = run_json(capsys, "doctor", "--data", *arguments, code=code)
    return {finding["name"]: finding for finding in result["findings"] if finding["part"] == "data"}


def write_choices(path: Path, labels: list[int], *, last: str = "") -> Path:
    """Write a table of two endings; the right one is always the red one."""
    endings = [("is red", "is blue") if label == 0 else ("is blue", "is red") for label in labels]
    rows = [f"house {row},it,{a},{b},{label}" for row, ((a, b), label) in enumerate(zip(endings, labels, strict=True))]
    path.write_text("\n".join(["sent1,sent2,ending0,ending1,label", *rows]) + f"\n{last}")
    return path


def write_questions(path: Path, question: str, answer: str) -> None:
    gold = {"text": answer, "answer_start": CONTEXT.index(answer)}
    qas = [{"id": "1", "question": question, "answers": [gold]}]
    content = {"version": "1.1", "data": [{"title": "t", "paragraphs": [{"context": CONTEXT, "qas": qas}]}]}
    path.write_text(json.dumps(content))


def test_choices_have_their_baselines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train = write_choices(tmp_path / "train.csv", [0, 0, 1] * 8)
    write_choices(tmp_path / "dev.csv", [0, 1, 1, 1])
    findings = data_findings(capsys, tmp_path, "--task", "swag")
    assert findings["reads"]["text"] == f"{train}: 24 rows to train on, 4 for validation (dev)"
    assert findings["baselines"]["text"] == "accuracy on dev: commonest answer 0.2500, bag of words 1.0000"
    assert findings["baselines"]["level"] == "ok"
    assert set(data_findings(capsys, tmp_path, "--task", "swag", "--quick")) == {"reads"}


def test_questions_have_their_baselines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("train", "dev"):
        write_questions(tmp_path / f"{name}-v1.1.json", "Where does Ada live?", "Oslo")
    findings = data_findings(capsys, tmp_path, "--task", "squad1")
    assert "1 questions to train on, 1 for validation (dev)" in findings["reads"]["text"]
    # "Ada lives in Oslo" has one word of the answer among four: F1 is 2 · 1/4 · 1 / (1/4 + 1).
    assert findings["baselines"]["text"] == f"f1 on dev: {SENTENCE} 40.0000"
    assert findings["baselines"]["value"] == {SENTENCE: {"f1": pytest.approx(40.0), "em": 0.0}}
    assert findings["baselines"]["level"] == "ok"


def test_tags_have_their_baseline_and_a_file_is_split(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cities = ("Oslo", "Rome", "Lima", "Bonn") * 10
    sentences = [f"Ada\tB-PER\nsees\tO\n{city}\tB-LOC\n" for city in cities]
    (tmp_path / "train.tsv").write_text("\n".join(sentences))
    findings = data_findings(capsys, tmp_path / "train.tsv", "--task", "ner")
    assert "for validation (a tenth of train)" in findings["reads"]["text"]
    assert findings["baselines"]["text"].startswith("f1 on a tenth of train: commonest tag of each word ")


def test_files_that_cannot_be_read_are_an_error_and_bad_rows_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_choices(tmp_path / "train.csv", [0, 1] * 20, last="house,it,is red,is blue,7\n")
    findings = data_findings(capsys, data, "--task", "swag", code=1)
    assert [(name, finding["level"]) for name, finding in findings.items()] == [("reads", "error")]
    assert "train.csv:42: expected a number from 0 to 1 in 'label', got 7" in findings["reads"]["text"]
    assert findings["reads"]["text"].endswith("got 7; --on-error skip leaves such rows out")
    assert "--on-error" not in findings["reads"]["advice"]
    findings = data_findings(capsys, data, "--task", "swag", "--on-error", "skip")
    assert findings["bad rows"]["value"] == {"without the number of the right choice": 1}
    assert findings["baselines"]["level"] == "ok"
