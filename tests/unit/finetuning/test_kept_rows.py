"""Evaluation on the training file: the rows that training kept are measured, in every kind of task; else a warning."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from bertwright.errors import InputError
from bertwright.files import file_digest, read_object
from bertwright.finetuning.evaluate import evaluate_task
from bertwright.finetuning.kept_rows import NOTE, warn_of_judgements
from bertwright.finetuning.result import finished_result
from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.model.folder import open_model
from bertwright.model.vector_settings import VectorSettings
from bertwright.tables.reader import read_table
from bertwright.tasks.classification.spec import get_task
from bertwright.tasks.embedding.spec import VectorTask
from bertwright.tasks.kinds import TASK_KINDS
from bertwright.tasks.spec import get_spec, with_reading
from bertwright.training.run_folder import RunFolder
from tests.support.commands import run_json
from tests.support.encoders import write_encoder
from tests.support.folders import update_json
from tests.support.retrieval import write_beir
from tests.support.task_examples import EXAMPLES, example_data
from tests.support.vectors import write_vector_model

FAST = FinetuneSettings(epochs=1, batch_size=4, learning_rate=1e-3, max_length=40, precision="fp32", threads=1)
ONE_OF_EACH = ("classify", "swag", "squad1", "ner", "embed")
ROWS = [f"the {'small' if row % 2 else 'large'} house number {row},{'old' if row % 2 else 'new'}" for row in range(40)]


@pytest.fixture(scope="module")
def start_encoder(tmp_path_factory: pytest.TempPathFactory, places_tokenizer: Path) -> str:
    """A model folder with a small random encoder."""
    return write_encoder(tmp_path_factory.mktemp("encoder") / "m", places_tokenizer)


@pytest.fixture(scope="module")
def table_run(tmp_path_factory: pytest.TempPathFactory, start_encoder: str) -> Path:
    """A folder with the table reviews.csv, with a row without a text, which is left out, and a run in `run`."""
    folder = tmp_path_factory.mktemp("table")
    (folder / "reviews.csv").write_text("\n".join(["text,label", *ROWS, ",old"]) + "\n")
    task = with_reading(get_task("classify"), input_format="auto", on_error="skip")
    finetune(FAST, task, model=start_encoder, data=folder / "reviews.csv", out=folder / "run")
    return folder


def evaluated(table_run: Path, data: Path, **options: Any) -> dict[str, Any]:
    task = with_reading(get_task("classify"), input_format="auto", on_error=options.pop("on_error", "skip"))
    return evaluate_task(task, model=str(table_run / "run"), data=data, **options)


def test_the_examples_are_of_all_kinds() -> None:
    assert {type(get_spec(name)) for name in ONE_OF_EACH} == {kind.spec for kind in TASK_KINDS} == set(EXAMPLES)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_the_training_file_gives_the_metrics_of_the_validation(
    name: str, start_encoder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = get_spec(name)
    folder = example_data(task, tmp_path / "example").data
    (train,) = folder.glob("train*")
    for path in folder.iterdir():
        if path != train:
            path.unlink()
    (tmp_path / "other").mkdir()
    other = Path(shutil.copy(train, tmp_path / "other" / f"reviews{train.suffix}"))
    result = finetune(FAST, task, model=start_encoder, data=train, out=tmp_path / "run")
    scores = result["seeds"][0]["scores"]
    shutil.move(tmp_path / "run/model", tmp_path / "moved")
    for data in (train, folder, other):
        capsys.readouterr()
        if isinstance(task, VectorTask):
            figures, printed = run_json(capsys, "evaluate", "embed", "--model", tmp_path / "moved", "--data", data)
        else:
            figures = evaluate_task(task, model=str(tmp_path / "moved"), data=data)
            printed = capsys.readouterr().err
        shared = figures.keys() & scores.keys()
        assert {key: figures[key] for key in shared} == pytest.approx({key: scores[key] for key in shared})
        assert result["metric"] in shared
        assert [figures[count] for count in ("examples", "questions", "sentences", "pairs") if count in figures] == [1]
        assert "only the rows that training kept for validation are measured: 1" in " ".join(printed.split())


def test_errors_and_temperature_come_from_the_rows_that_were_kept(table_run: Path, tmp_path: Path) -> None:
    answers = json.loads((table_run / "run/seed-0/predictions.json").read_text())["dev"]
    errors = tmp_path / "errors.jsonl"
    metrics = evaluated(table_run, table_run / "reviews.csv", errors=str(errors))
    assert sorted(int(str(line)) for line in read_table(errors).column("line")) == answers["line"]
    assert metrics["examples"] == len(answers["line"]) == 4
    assert metrics["accuracy"] == sum(answers["score"]) / 4


def test_a_run_and_its_card_have_the_number_of_validation_rows(table_run: Path) -> None:
    record = json.loads((table_run / "run/run.json").read_text())["result"]
    assert record["validation_rows"] == 4
    line = f"validation rows: 4; an accuracy of {record['mean']:.4f} on them has a standard error of"
    assert line in finished_result(RunFolder(table_run / "run", {"result": record}))["text"]
    assert f"- {line}" in (table_run / "run/model/README.md").read_text()


def test_a_stopped_run_names_the_folder_of_its_best_epoch(table_run: Path, tmp_path: Path) -> None:
    stopped = Path(shutil.copytree(table_run / "run", tmp_path / "stopped"))
    shutil.rmtree(stopped / "model")
    with pytest.raises(
        InputError, match=r"its run has not finished yet; the best epoch so far is in .*stopped/seed-0;"
    ):
        open_model(str(stopped))
    assert open_model(str(stopped / "seed-0")).labels == ("new", "old")


def test_a_large_calibration_error_is_named(table_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    metrics = evaluated(table_run, table_run / "reviews.csv")
    assert ("give --calibrate" in " ".join(capsys.readouterr().err.split())) == (metrics["calibration_error"] > 0.1)


def test_other_options_than_in_training_are_refused(table_run: Path) -> None:
    with pytest.raises(InputError, match="the rows that were kept for validation cannot be told with these options"):
        evaluated(table_run, table_run / "reviews.csv", on_error="stop")


def test_another_file_is_measured_as_it_is(table_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "others.csv").write_text("\n".join(["text,label", *ROWS]) + "\n")
    assert evaluated(table_run, tmp_path / "others.csv")["examples"] == 40
    assert "was trained on" not in capsys.readouterr().err


def test_a_training_file_with_a_validation_file_beside_it_is_no_measure(
    start_encoder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.csv").write_text("\n".join(["text,label", *ROWS]) + "\n")
    (tmp_path / "dev.csv").write_text("\n".join(["text,label", *ROWS[:10]]) + "\n")
    task = get_task("classify")
    finetune(FAST, task, model=start_encoder, data=tmp_path, out=tmp_path / "run")
    assert evaluate_task(task, model=str(tmp_path / "run"), data=tmp_path)["examples"] == 10
    capsys.readouterr()
    assert evaluate_task(task, model=str(tmp_path / "run"), data=tmp_path / "train.csv")["examples"] == 40
    assert "was trained on all rows of this file" in " ".join(capsys.readouterr().err.split())
    with pytest.raises(InputError, match=r"--calibrate: .*was trained on all rows of this file; give rows"):
        evaluate_task(task, model=str(tmp_path / "run"), data=tmp_path / "train.csv", calibrate=True)


def test_a_validation_file_with_the_training_rows_is_no_measure(
    start_encoder: str, table_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("train.csv", "dev.csv"):
        (tmp_path / name).write_text("\n".join(["text,label", *ROWS]) + "\n")
    task = get_task("classify")
    finetune(FAST, task, model=start_encoder, data=tmp_path, out=tmp_path / "run")
    assert "the validation file dev is a copy of the training file" in " ".join(capsys.readouterr().err.split())
    assert evaluate_task(task, model=str(tmp_path / "run"), data=tmp_path)["examples"] == 40
    printed = " ".join(capsys.readouterr().err.split())
    assert f"{tmp_path / 'dev.csv'}: the model was trained on all rows of this file" in printed
    with pytest.raises(InputError, match=r"--calibrate: .*dev\.csv: the model was trained on all rows of this file"):
        evaluate_task(task, model=str(tmp_path / "run"), data=tmp_path, calibrate=True)

    for name in ("train.csv", "dev.csv"):  # the model kept rows of its only file, which is the validation file here
        shutil.copy(table_run / "reviews.csv", tmp_path / name)
    assert evaluated(table_run, tmp_path)["examples"] == 40
    assert "was trained on rows of this file" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(("kept", "rows"), [(None, "all rows"), ({"rows": 1, "sha256": "0"}, "rows")])
def test_judgements_of_the_training_are_measured_with_a_warning(
    kept: Any, rows: str, tmp_path: Path, own_tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, data = tmp_path / "model", write_beir(tmp_path / "data")
    write_vector_model(model, own_tokenizer, VectorSettings(normalize=True))
    trained_on = data / "qrels/test.tsv"
    notes = read_object(model / "config.json").get("bertwright", {})
    update_json(model / "config.json", bertwright={**notes, NOTE: {"sha256": file_digest(trained_on), "kept": kept}})
    _, printed = run_json(capsys, "evaluate", "embed", "--model", model, "--data", data)
    assert f"{trained_on}: the model was trained on {rows} of this file: the numbers below are better" in printed
    trained_on.write_text("q3\td2\t1\n", "utf-8")
    for other in (data, trained_on, tmp_path / "nowhere"):
        warn_of_judgements(str(model), other)
    assert capsys.readouterr().err == ""


def test_a_folder_whose_table_was_the_training_file_is_measured_on_its_validation_file(
    table_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(table_run / "reviews.csv", tmp_path)
    (tmp_path / "valid.csv").write_text("\n".join(["text,label", *ROWS[:6]]) + "\n")
    assert evaluated(table_run, tmp_path)["examples"] == 6
    assert "the rows that training kept" not in capsys.readouterr().err
