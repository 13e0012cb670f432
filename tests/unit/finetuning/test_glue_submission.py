"""GLUE's zip: every file, every row in its order, labels as the server spells them."""

import csv
import io
import json
import shutil
import zipfile
from pathlib import Path

import pytest
from safetensors.torch import load_file

from bertwright.cli import main
from bertwright.errors import InputError
from bertwright.finetuning.evaluate import predict_file
from bertwright.finetuning.glue_submission import SUBMISSION_FILES, TASKS, write_submission
from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.tasks.classification.spec import get_task
from tests.support.other_weights import put

FAST = FinetuneSettings(epochs=1, batch_size=8, max_length=24, threads=1)
SPELLED = {
    "CoLA": {"0", "1"},
    "SST-2": {"0", "1"},
    "MRPC": {"0", "1"},
    "QQP": {"0", "1"},
    "WNLI": {"0", "1"},
    "RTE": {"entailment", "not_entailment"},
    "QNLI": {"entailment", "not_entailment"},
    **{file: {"entailment", "neutral", "contradiction"} for file in ("MNLI-m", "MNLI-mm", "AX")},
}


def write_tsv(path: Path, columns: tuple[str, ...], rows: list[tuple[object, ...]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join("\t".join(map(str, row)) + "\n" for row in [columns, *rows]))


@pytest.fixture(scope="module")
def glue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Test files of a few rows each, in GLUE's layout."""
    home = tmp_path_factory.mktemp("glue")
    for count, part in enumerate(SUBMISSION_FILES, start=3):
        text = ("sentence1", "sentence2") if part.file == "AX" else get_task(part.task).text
        rows = [(n, *(f"{column} {n} of {part.file}" for column in text)) for n in range(count)]
        write_tsv(home / part.folder / f"{part.stem}.tsv", ("index", *text), rows)
    return home


@pytest.fixture(scope="module")
def glue_models(tmp_path_factory: pytest.TempPathFactory, own_tokenizer: Path) -> dict[str, str]:
    """A model of every task, hardly trained."""
    home = tmp_path_factory.mktemp("models")
    made = {}
    for name in TASKS:
        task = get_task(name)
        labels = [*task.labels] or ["0.5", "4.5"]
        rows = [(*(f"{column} {n}" for column in task.text), labels[n % len(labels)]) for n in range(12)]
        path = home / name / "train.csv"
        path.parent.mkdir()
        with path.open("w", newline="") as stream:
            csv.writer(stream).writerows([(*task.text, task.label), *rows])
        finetune(FAST, task, model="random:tiny", data=path, out=home / f"run-{name}", tokenizer=own_tokenizer)
        made[name] = str(home / f"run-{name}")
    return made


def rows_of(path: Path) -> dict[str, list[list[str]]]:
    with zipfile.ZipFile(path) as archive:
        texts = {name.removesuffix(".tsv"): archive.read(name).decode() for name in archive.namelist()}
    return {name: list(csv.reader(io.StringIO(text), delimiter="\t")) for name, text in texts.items()}


def test_every_file_is_answered_as_the_server_wants_it(glue: Path, glue_models: dict[str, str], tmp_path: Path) -> None:
    report = write_submission(glue_models, glue, tmp_path / "a.zip")
    assert report["rows"] == {part.file: count for count, part in enumerate(SUBMISSION_FILES, start=3)}
    for name, rows in rows_of(tmp_path / "a.zip").items():
        assert rows[0] == ["index", "prediction"]
        assert [row[0] for row in rows[1:]] == [str(n) for n in range(report["rows"][name])]
        answers = {row[1] for row in rows[1:]}
        assert answers <= SPELLED[name] if name in SPELLED else all(0 <= float(answer) <= 5 for answer in answers)
    write_submission(glue_models, glue, tmp_path / "b.zip")
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()


def test_the_option_that_the_message_names_reads_csv_with_another_ending(
    glue: Path, glue_models: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_submission(glue_models, glue, tmp_path / "tabs.zip")
    shutil.copytree(glue, tmp_path / "glue")
    for part in SUBMISSION_FILES:
        path = tmp_path / "glue" / part.folder / f"{part.stem}.tsv"
        path.write_text(path.read_text().replace("\t", ","))
    models = [word for task, model in glue_models.items() for word in ("--model", f"{task}={model}")]
    command = ["submission", *models, "--data", str(tmp_path / "glue"), "--out", str(tmp_path / "commas.zip")]
    assert main(command) == 2
    assert "add --input-format csv" in capsys.readouterr().err
    assert main([*command, "--input-format", "csv"]) == 0
    assert (tmp_path / "commas.zip").read_bytes() == (tmp_path / "tabs.zip").read_bytes()


def test_a_row_keeps_the_index_of_its_file(
    glue: Path, glue_models: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_submission(glue_models, glue, tmp_path / "ordered.zip")
    shutil.copytree(glue, tmp_path / "glue")
    path = tmp_path / "glue" / "STS-B" / "test.tsv"
    header, *rows = path.read_text().splitlines(keepends=True)
    path.write_text(header + "".join(reversed(rows)))
    write_submission(glue_models, tmp_path / "glue", tmp_path / "turned.zip")
    ordered, turned = (rows_of(tmp_path / name)["STS-B"] for name in ("ordered.zip", "turned.zip"))
    assert turned == [ordered[0], *reversed(ordered[1:])]
    monkeypatch.setattr("bertwright.finetuning.glue_submission.open_logits", lambda _: pytest.fail("it computes"))
    for wrong in (rows[0], rows[0].replace("0", "x", 1)):
        path.write_text(header + rows[0] + wrong)
        with pytest.raises(InputError, match=r"test\.tsv:3: expected another whole number in the column 'index'"):
            write_submission(glue_models, tmp_path / "glue", tmp_path / "wrong.zip")


def test_wnli_without_a_model_is_its_majority(glue: Path, glue_models: dict[str, str], tmp_path: Path) -> None:
    fewer = {name: folder for name, folder in glue_models.items() if name != "wnli"}
    write_submission(fewer, glue, tmp_path / "a.zip")
    assert {row[1] for row in rows_of(tmp_path / "a.zip")["WNLI"][1:]} == {"0"}


def test_long_texts_are_answered_as_predict_does(glue: Path, glue_models: dict[str, str], tmp_path: Path) -> None:
    """A model that gives up the middle of what is too long does so here too."""
    rows = [(n, "one word more " * (5 + n), "and then the end " * (9 - n) + "of it") for n in range(4)]
    shutil.copytree(glue, tmp_path / "glue")
    write_tsv(tmp_path / "glue" / "STS-B" / "test.tsv", ("index", "sentence1", "sentence2"), rows)
    answers = {}
    for long in ("truncate", "head-tail"):
        model = tmp_path / long
        shutil.copytree(Path(glue_models["stsb"]) / "model", model)
        described = json.loads((model / "config.json").read_text())
        described["bertwright"]["task"] |= {"long": long, "centre": 2.5, "spread": 0.1}
        (model / "config.json").write_text(json.dumps(described))
        weights = load_file(model / "model.safetensors")  # larger, so that another text gives another number
        larger = {name: 10 * tensor if name.startswith("bert.") else tensor for name, tensor in weights.items()}
        put(model, larger)
        predict_file(str(model), str(tmp_path / "glue" / "STS-B" / "test.tsv"), str(tmp_path / f"{long}.tsv"))
        numbers = [float(line.split("\t")[-1]) for line in (tmp_path / f"{long}.tsv").read_text().splitlines()[1:]]
        write_submission({**glue_models, "stsb": str(model)}, tmp_path / "glue", tmp_path / f"{long}.zip")
        answers[long] = [float(row[1]) for row in rows_of(tmp_path / f"{long}.zip")["STS-B"][1:]]
        assert answers[long] == pytest.approx([min(5.0, max(0.0, score)) for score in numbers], abs=6e-4)
    assert answers["truncate"] != answers["head-tail"]


def test_a_model_on_features_answers_too(
    glue: Path, glue_models: dict[str, str], own_tokenizer: Path, tmp_path: Path
) -> None:
    task = get_task("rte")
    settings = FAST.model_copy(update={"features": "last", "lstm_width": 8})
    data = Path(glue_models["rte"]).parent / "rte" / "train.csv"
    finetune(settings, task, model="random:tiny", data=data, out=tmp_path / "run", tokenizer=own_tokenizer)
    write_submission({**glue_models, "rte": str(tmp_path / "run")}, glue, tmp_path / "a.zip")
    predict_file(str(tmp_path / "run"), str(glue / "RTE" / "test.tsv"), str(tmp_path / "own.tsv"))
    labels = [line.split("\t")[3] for line in (tmp_path / "own.tsv").read_text().splitlines()[1:]]
    assert [row[1] for row in rows_of(tmp_path / "a.zip")["RTE"][1:]] == labels


def test_what_cannot_be_submitted_is_reported(
    glue: Path, glue_models: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    out = tmp_path / "a.zip"
    with pytest.raises(InputError, match=r"--out .*: expected a file, got a folder"):
        write_submission(glue_models, glue, tmp_path)
    with pytest.raises(
        InputError,
        match="no model for rte; expected models for cola, sst2, mrpc, stsb, qqp, ",
    ):
        write_submission({name: folder for name, folder in glue_models.items() if name != "rte"}, glue, out)
    with pytest.raises(InputError, match="squad is not a GLUE task; expected models for cola, sst2, "):
        write_submission({**glue_models, "squad": "m"}, glue, out)
    with pytest.raises(InputError, match="expected a model for SST-2, got one for cola"):
        write_submission({**glue_models, "sst2": glue_models["cola"]}, glue, out)
    with pytest.raises(InputError, match="expected a model for QNLI, got one for rte"):  # their labels are the same
        write_submission({**glue_models, "qnli": glue_models["rte"]}, glue, out)
    assert "rows answered" not in capsys.readouterr().err  # all of that before the first answer
    with pytest.raises(InputError, match=r"expected one file test\.tsv for CoLA, found 0"):
        write_submission(glue_models, tmp_path, out)
    assert not out.exists()
