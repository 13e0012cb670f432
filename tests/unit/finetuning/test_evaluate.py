"""Evaluate with --errors and --calibrate: the files, the temperature in every use of the model, and refusals."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoModelForSequenceClassification

import bertwright
from bertwright.cli import main
from bertwright.errors import InputError
from bertwright.files import write_json
from bertwright.finetuning import evaluate
from bertwright.finetuning.evaluate import evaluate_task, predict_file, task_name_of
from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.model.folder import open_model
from bertwright.reports.report import write_report
from bertwright.sklearn import BertClassifier
from bertwright.tables.reader import read_table
from bertwright.tasks.binding import open_tokenizer
from bertwright.tasks.classification.encoding import encode
from bertwright.tasks.classification.spec import get_task
from bertwright.tasks.classification.task import open_logits
from tests.support.folders import update_json

FAST = FinetuneSettings(epochs=6, batch_size=8, learning_rate=1e-3, max_length=16, precision="fp32", threads=1)
TEXTS = [f"the {'small' if row % 2 else 'large'} house number {row}" for row in range(40)]
GOLD = ["old" if row % 2 else "new" for row in range(40)]


@pytest.fixture(scope="module")
def noisy_run(tmp_path_factory: pytest.TempPathFactory, own_tokenizer: Path) -> Path:
    """A folder with labelled tables, of whose dev rows every fifth has the other label, and a run in `run`."""
    folder = tmp_path_factory.mktemp("noisy")
    rows = [f"{text}\t{label}" for text, label in zip(TEXTS, GOLD, strict=True)]
    (folder / "data").mkdir()
    (folder / "data/train.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
    other = {"old": "new", "new": "old"}
    noisy = [f"{TEXTS[row]}\t{other[GOLD[row]] if row % 5 == 0 else GOLD[row]}" for row in range(40)]
    (folder / "data/dev.tsv").write_text("\n".join(["text\tlabel", *noisy]) + "\n")
    task = get_task("classify")
    finetune(FAST, task, model="random:tiny", data=folder / "data", out=folder / "run", tokenizer=own_tokenizer)
    return folder


@pytest.fixture
def copied_model(noisy_run: Path, tmp_path: Path) -> Path:
    """A copy of the model, which a test may change."""
    return Path(shutil.copytree(noisy_run / "run/model", tmp_path / "model"))


def probabilities(folder: Path, source: Path, target: Path) -> np.ndarray[Any, Any]:
    predict_file(str(folder), str(source), str(target))
    table = read_table(target)
    return np.array([[float(str(cell)) for cell in table.column(f"probability_{label}")] for label in ("new", "old")]).T


def test_the_errors_of_a_model_stand_in_the_file_the_worst_first(noisy_run: Path, tmp_path: Path) -> None:
    task, data = get_task("classify"), noisy_run / "data"
    metrics = evaluate_task(task, model=str(noisy_run / "run"), data=data, errors=str(tmp_path / "errors.jsonl"))
    rows = [json.loads(line) for line in (tmp_path / "errors.jsonl").read_text().splitlines()]
    wrong = [row for row in rows if row["gold"] != row["predicted"]]
    assert rows[: len(wrong)] == wrong
    assert [row["wrong"] for row in rows] == [row in wrong for row in rows]
    assert metrics["accuracy"] == 1 - len(wrong) / 40
    assert len(wrong) >= 8  # those with the other label
    for part, sign in ((rows[: len(wrong)], -1), (rows[len(wrong) :], 1)):
        assert [row["probability"] for row in part] == sorted(
            (row["probability"] for row in part), key=lambda p: sign * p
        )
    lines = (data / "dev.tsv").read_text().splitlines()
    assert all(lines[row["line"] - 1] == f"{row['text']}\t{row['gold']}" for row in rows)
    assert metrics["confusion"]["old"].get("old", 0) + metrics["confusion"]["new"].get("new", 0) == 40 - len(wrong)


def test_a_temperature_is_used_wherever_the_model_answers(
    noisy_run: Path, copied_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dev = noisy_run / "data/dev.tsv"
    before = probabilities(copied_model, dev, tmp_path / "before.tsv")
    theirs = AutoModelForSequenceClassification.from_pretrained(copied_model)
    weights = (copied_model / "model.safetensors").read_bytes()
    plain = evaluate_task(get_task("classify"), model=str(copied_model), data=dev)
    metrics = evaluate_task(get_task("classify"), model=str(copied_model), data=dev, calibrate=True)
    temperature = metrics["temperature"]
    assert "its config.json has the temperature" in capsys.readouterr().err
    assert abs(np.log(temperature)) > 0.05
    assert {name: metrics[name] for name in ("accuracy", "macro_f1", "confusion")} == {
        name: plain[name] for name in ("accuracy", "macro_f1", "confusion")
    }
    assert metrics["calibration_error.before"] == plain["calibration_error"]
    after = probabilities(copied_model, dev, tmp_path / "after.tsv")
    scaled = before ** (1 / temperature)  # softmax(z / T) from softmax(z)
    assert after == pytest.approx(scaled / scaled.sum(1, keepdims=True), abs=2e-4)  # 6 digits are stored
    texts = [str(text) for text in read_table(dev).column("text")]
    served = [answer.probabilities for answer in bertwright.load(str(copied_model), precision="fp32")(texts)]
    assert np.array([[row["new"], row["old"]] for row in served]) == pytest.approx(after, abs=2e-6)
    estimator = BertClassifier.load(copied_model)
    assert estimator.predict_proba(texts) == pytest.approx(after, abs=2e-6)
    odds = np.log(after[:, 1] / after[:, 0])
    assert estimator.decision_function(texts) == pytest.approx(odds, abs=1e-3)
    assert evaluate_task(get_task("classify"), model=str(copied_model), data=dev)["calibration_error"] == pytest.approx(
        metrics["calibration_error"]
    )
    # transformers opens the folder, and ignores the temperature.
    assert (copied_model / "model.safetensors").read_bytes() == weights
    again = AutoModelForSequenceClassification.from_pretrained(copied_model)
    assert again.config.id2label == theirs.config.id2label == {0: "new", 1: "old"}
    saved = open_model(str(copied_model))
    logits = open_logits(saved)(encode(open_tokenizer(saved), texts, max_length=16))
    exponents = np.exp(logits.astype(np.float64))
    assert exponents / exponents.sum(1, keepdims=True) == pytest.approx(before, abs=2e-6)


def test_a_task_for_any_table_has_the_columns_and_codes_of_the_model(
    noisy_run: Path, copied_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = evaluate_task(get_task("classify"), model=str(copied_model), data=noisy_run / "data/dev.tsv")
    config = json.loads((copied_model / "config.json").read_text())
    noted = config["bertwright"]
    task = {**noted["task"], "name": "age", "text": ["house"], "label": "built", "codes": ["N", "O"]}
    update_json(copied_model / "config.json", bertwright={**noted, "task": task})
    rows = [line.split("\t") for line in (noisy_run / "data/dev.tsv").read_text().splitlines()[1:]]
    codes = {"new": "N", "old": "O"}
    lines = ["built,house", *(f"{codes[label]},{text}" for text, label in rows)]
    (tmp_path / "test.csv").write_text("\n".join(lines) + "\n")
    command = ["evaluate", "classify", "--model", str(copied_model), "--data", str(tmp_path / "test.csv"), "--json"]
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] == expected["accuracy"]


def test_a_second_calibration_takes_the_place_of_the_first(noisy_run: Path, copied_model: Path) -> None:
    dev, task = noisy_run / "data/dev.tsv", get_task("classify")
    first = evaluate_task(task, model=str(copied_model), data=dev, calibrate=True)
    second = evaluate_task(task, model=str(copied_model), data=dev, calibrate=True)
    assert second["temperature"] == first["temperature"]
    assert second["calibration_error.before"] == first["calibration_error"]
    stored = json.loads((copied_model / "config.json").read_text())
    assert stored["bertwright"]["task"]["temperature"] == first["temperature"]


def test_a_model_of_a_store_is_not_calibrated_in_the_cache(
    noisy_run: Path, copied_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (copied_model / "config.json").read_bytes()
    monkeypatch.setattr(evaluate, "url_of_copy", lambda _: "s3://b/model")
    with pytest.raises(InputError, match=r"--calibrate: writes .* s3://b/model is in a store; copy the fold"):
        evaluate_task(get_task("classify"), model=str(copied_model), data=noisy_run / "data/dev.tsv", calibrate=True)
    assert (copied_model / "config.json").read_bytes() == before


def test_a_task_with_a_wrong_entry_names_the_entry(noisy_run: Path, copied_model: Path) -> None:
    config = json.loads((copied_model / "config.json").read_text())
    config["bertwright"]["task"]["temperature"] = 0
    (copied_model / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"unknown task in config.json: temperature: Input should .*, got 0"):
        evaluate_task(get_task("classify"), model=str(copied_model), data=noisy_run / "data/dev.tsv")


def test_a_model_tuned_further_has_no_temperature(noisy_run: Path, copied_model: Path, tmp_path: Path) -> None:
    evaluate_task(get_task("classify"), model=str(copied_model), data=noisy_run / "data/dev.tsv", calibrate=True)
    one = FAST.model_copy(update={"epochs": 1})
    finetune(one, get_task("classify"), model=str(copied_model), data=noisy_run / "data", out=tmp_path / "next")
    assert "temperature" not in json.loads((tmp_path / "next/model/config.json").read_text())["bertwright"]["task"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--errors no/such/folder/e.tsv", "--errors no/such/folder/e.tsv: "),
        ("--errors errors.docx", "--errors errors.docx: expected the name of a table; allowed endings: .tsv"),
        ("--errors errors.parquet.gz", "--errors errors.parquet.gz: Parquet is compressed inside"),
        ("--errors -", "--errors -: expected the name of a table"),
        ("--errors DATA/dev.tsv", "expected another file than that of --data"),
    ],
)
def test_what_cannot_be_written_is_refused_at_once(
    noisy_run: Path, options: str, words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(noisy_run)
    options = options.replace("DATA", str(noisy_run / "data"))
    before = (noisy_run / "data/dev.tsv").read_bytes()
    command = f"evaluate classify --model run --data {noisy_run / 'data'} {options}"
    assert main(command.split()) == 2
    assert words in capsys.readouterr().err
    assert (noisy_run / "data/dev.tsv").read_bytes() == before


@pytest.mark.parametrize(
    ("task", "option", "words"),
    [
        ("swag", "--data d --calibrate", "--calibrate: expected a task of sentences or pairs with labels"),
        ("ner", "--data d --calibrate", "--calibrate: expected a task of sentences or pairs with labels"),
        ("pretraining", "--corpus c --calibrate", "evaluate pretraining: has no labels"),
        ("pretraining", "--corpus c --on-error skip", "evaluate pretraining: reads a corpus; leave --data, "),
        ("", "--data d", "m: not a model folder"),
        ("sst2", "--data d", "--data d: there is no such file or folder"),
        ("sst2", "--data d --corpus c", "evaluate sst2: --corpus, --rows and --length are for evaluate pretraining"),
    ],
)
def test_tasks_without_such_an_output_are_refused(
    tmp_path: Path,
    task: str,
    option: str,
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(f"evaluate {task} --model m {option}".split()) == 2
    assert words in capsys.readouterr().err
    assert main("predict --model m --input absent.tsv".split()) == 2
    assert "--input absent.tsv: there is no such file" in capsys.readouterr().err


def test_without_a_task_the_one_that_the_folder_notes_is_measured(
    noisy_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = []
    for task in (["classify"], []):
        command = ["evaluate", *task, "--model", str(noisy_run / "run"), "--data", str(noisy_run / "data")]
        assert main([*command, "--precision", "fp32", "--json"]) == 0
        results.append(json.loads(capsys.readouterr().out))
    assert results[0] == results[1]
    write_json(tmp_path / "config.json", {"model_type": "bert"})
    assert main(["evaluate", "--model", str(tmp_path), "--data", "d"]) == 2
    assert f"notes no task; write bertwright evaluate TASK --model {tmp_path} " in capsys.readouterr().err
    write_json(tmp_path / "modules.json", [])
    assert task_name_of(str(tmp_path)) == "embed"


def test_a_text_that_tsv_cannot_hold_is_refused_before_anything_is_computed(
    noisy_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dev = tmp_path / "dev.csv"
    dev.write_text('text,label\n"two\nlines",old\nb,new\n')
    command = f"evaluate classify --model {noisy_run / 'run'} --data {dev} --errors {tmp_path / 'e.tsv'}"
    assert main(command.split()) == 2
    assert "holds a tab or a line break, which tsv cannot hold; name a file .csv" in capsys.readouterr().err
    assert not (tmp_path / "e.tsv").exists()
    assert main(command.replace("e.tsv", "e.csv").split()) == 0
    assert "two\nlines" in read_table(tmp_path / "e.csv").column("text")


def test_the_printed_evaluation_has_the_tables_and_json_their_numbers(
    noisy_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["evaluate", "classify", "--model", str(noisy_run / "run"), "--data", str(noisy_run / "data")]
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert "confusion: a row for each gold label, a column for each predicted label" in printed
    assert "reliability, by the probability of an answer" in printed
    assert printed.startswith("accuracy ")
    assert main([*command, "--json"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert sum(count for row in result["confusion"].values() for count in row.values()) == 40
    assert sum(part["count"] for part in result["reliability"]) == 40
    assert "text" not in result


def test_the_report_of_a_run_shows_confusion_and_worst_rows(noisy_run: Path, tmp_path: Path) -> None:
    page = write_report(noisy_run / "run", out=tmp_path / "page.html", corpus=None).read_text("utf-8")
    titles = {part.split("<")[0] for part in page.split("<h2>")}
    assert {"Confusion matrix", "Reliability", "Worst rows", "Baselines"} <= titles
    review = json.loads((noisy_run / "run/seed-0/validation.json").read_text())["dev"]
    assert len(review["worst"]["rows"]) == 20
    assert review["worst"]["rows"][0][1] in page
    scores = json.loads((noisy_run / "run/run.json").read_text())["result"]["seeds"][0]["scores"]
    right = sum(review["confusion"][label].get(label, 0) for label in ("new", "old"))
    assert right / 40 == scores["accuracy"]


def test_a_seed_keeps_the_answers_of_its_last_epoch_without_the_texts(noisy_run: Path) -> None:
    kept = json.loads((noisy_run / "run/seed-0/predictions.json").read_text())["dev"]
    last = json.loads((noisy_run / "run/run.json").read_text())["result"]["seeds"][0]["epochs"][-1]
    assert set(kept) == {"line", "gold", "predicted", "score"}
    assert kept["line"] == list(range(2, 42))
    right = [gold == predicted for gold, predicted in zip(kept["gold"], kept["predicted"], strict=True)]
    assert kept["score"] == right
    assert sum(right) / 40 == last["accuracy"]


def test_a_saved_regression_keeps_the_differences_of_large_numbers(tmp_path: Path, own_tokenizer: Path) -> None:
    """Times in seconds: fp32 has steps of 128 there."""
    scores = []
    for name, centre in (("near", 0), ("far", 1_700_000_000)):
        rows = [f"{text}\t{centre + 100_000 * (row % 2)}" for row, text in enumerate(TEXTS)]
        (tmp_path / f"{name}.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
        run, answers, source = tmp_path / name, tmp_path / f"{name}-answers.tsv", tmp_path / f"{name}.tsv"
        finetune(FAST, get_task("regress"), model="random:tiny", data=source, out=run, tokenizer=own_tokenizer)
        errors = tmp_path / f"{name}-errors.jsonl"
        metrics = evaluate_task(get_task("regress"), model=str(run), data=source, errors=str(errors))
        predict_file(str(run), str(source), str(answers))
        scores.append(np.array([float(str(cell)) for cell in read_table(answers).column("score")]) - centre)
        for line in read_table(errors).rows:
            row = dict(zip(read_table(errors).columns, line, strict=True))
            assert float(str(row["predicted"])) - float(str(row["gold"])) == pytest.approx(
                float(str(row["residual"])), abs=1.0
            )
        assert metrics["pearson"] > 0.5
    assert np.ptp(scores[0]) > 100
    np.testing.assert_allclose(scores[1], scores[0], atol=1.0)
    assert json.loads((tmp_path / "far/model/config.json").read_text())["bertwright"]["task"]["centre"] > 1e9
