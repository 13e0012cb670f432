"""The main job through the command line, on text of our own: output, exit codes, nothing half-written."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bertwright import cli
from bertwright.cli import main
from bertwright.errors import RunFailed
from bertwright.locks import locked_file
from bertwright.training.loop import Loop
from tests.support.blimp import write_blimp
from tests.support.commands import run_bertwright, run_json
from tests.support.folders import read_jsonl
from tests.support.trackers import FailingTracker, Recorder

TINY = ["--lengths", "32", "--batch-size", "8", "--threads", "1", "--precision", "fp32"]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer, a corpus and a pre-trained run of 12 steps."""
    folder = tmp_path_factory.mktemp("made")
    text = Path(__file__).parents[1] / "fixtures" / "own_text.txt"
    assert main(["tokenizer", "train", str(text), "--vocab-size", "700", "--out", str(folder / "tok")]) == 0
    build = [
        "corpus",
        "build",
        str(text),
        "--tokenizer",
        str(folder / "tok"),
        "--out",
        str(folder / "corpus"),
        "--workers",
        "1",
    ]
    assert main(build) == 0
    start = ["pretrain", "--corpus", str(folder / "corpus"), "--out", str(folder / "run"), "--steps", "12", *TINY]
    assert main([*start, "--held-out", "0.2", "--evaluations", "2", "--learning-rate", "1e-3"]) == 0
    return folder


@pytest.fixture(scope="module")
def reviews(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A labelled table whose answer is a word of the text."""
    path = tmp_path_factory.mktemp("table") / "reviews.csv"
    places = ("harbour", "garden", "library", "kitchen", "station", "meadow", "tower", "bridge")
    rows = [
        f'"The {noun} was {word} on day {day}.",{label},{day}'
        for day in range(8)
        for noun in places
        for word, label in (("lovely", "good"), ("dreadful", "bad"))
    ]
    path.write_text("review,verdict,day\n" + "\n".join(rows) + "\n", "utf-8")
    return path


@pytest.fixture(scope="module")
def tuned(base: Path, reviews: Path) -> Path:
    """A classifier fine-tuned with two seeds."""
    arguments = [
        "finetune",
        "classify",
        "--model",
        str(base / "run"),
        "--data",
        str(reviews),
        "--out",
        str(base / "tuned"),
    ]
    columns = ["--text-column", "review", "--label-column", "verdict"]
    options = "--epochs 6 --learning-rate 2e-3 --seeds 2 --threads 1 --batch-size 16 --max-length 24".split()
    assert main([*arguments, *columns, *options]) == 0
    return base / "tuned"


def test_help_is_quick_because_it_imports_neither_torch_nor_numpy() -> None:
    code = (
        "import sys; from bertwright.cli import main; main(['--help']); "
        "heavy = {'torch', 'numpy', 'numba', 'pyarrow', 'pydantic', 'tyro'} & set(sys.modules); "
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "pretrain" in done.stdout


@pytest.mark.parametrize(
    "arguments", [["fly"], ["corpus"], ["corpus", "paint"], ["pretrain", "--sise", "tiny"], ["fill"]]
)
def test_bad_usage_is_exit_code_two(arguments: list[str]) -> None:
    done = run_bertwright(*arguments)
    assert done.returncode == 2, done
    assert done.stdout == ""
    assert done.stderr


def test_a_misspelt_command_of_a_group_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["corpus", "buld"]) == 2
    assert "there is no command 'corpus buld'" in capsys.readouterr().err
    assert main(["corpus", "--help"]) == 0
    assert "no command" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "options",
    [["--corpus", "typo.txt"], ["--corpus", "quick/text.txt"], ["--minutes", "nan"]],
)
def test_a_quickstart_that_cannot_begin_removes_nothing(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quick").mkdir()
    made = {"quickstart.txt": "made by: bertwright quickstart\n", "text.txt": "One. Two.\n\nThree. Four.\n"}
    for name, text in made.items():
        (tmp_path / "quick" / name).write_text(text, "utf-8")
    assert main(["quickstart", "--out", "quick", *options]) == 2
    assert options[1] in capsys.readouterr().err
    assert {path.name: path.read_text("utf-8") for path in (tmp_path / "quick").iterdir()} == made


def test_a_quickstart_keeps_an_earlier_one_and_refuses_other_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("bertwright.quickstart.run._run_stages", lambda *_, out, **__: {"out": str(out), "text": ""})
    (tmp_path / "my.txt").write_text("A short text. Of a person.\n\nA second document.\n", "utf-8")
    arguments = ["quickstart", "--corpus", "my.txt", "--out"]
    assert main([*arguments, "quick"]) == 0
    notes = tmp_path / "quick" / "task" / "my-notes.txt"
    notes.parent.mkdir()
    notes.write_text("mine", "utf-8")
    assert main([*arguments, "quick"]) == 0
    assert "quick: the earlier quickstart is kept as" in capsys.readouterr().err
    assert (tmp_path / "quick-1" / "task" / "my-notes.txt").read_text("utf-8") == "mine"
    assert sorted(path.name for path in (tmp_path / "quick").iterdir()) == [".quickstart.lock", "quickstart.txt"]
    (tmp_path / "quick" / "pretraining").mkdir()
    for lock in (".quickstart.lock", "pretraining/.lock"):
        with locked_file(tmp_path / "quick" / lock, "held by this test"):
            assert main([*arguments, "quick"]) == 2
        assert "quick: another process works in this folder" in capsys.readouterr().err
    assert main([*arguments, "."]) == 2
    assert "choose another --out" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path / "quick")
    assert main(["quickstart", "--corpus", "../my.txt", "--out", "."]) == 2
    assert "cannot be renamed" in capsys.readouterr().err
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "quickstart.txt").write_text("how to start quickly", "utf-8")
    assert main(["quickstart", "--corpus", "../my.txt", "--out", "../notes"]) == 2
    assert "is no folder of quickstart" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["my.txt", "notes", "quick", "quick-1"]


def test_a_vocabulary_in_the_wrong_case_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "Berlin", "Paris", "the", "##s"]
    (tmp_path / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces), "utf-8")
    begin = ["tokenizer", "import", str(tmp_path / "vocab.txt"), "--out"]
    assert main([*begin, str(tmp_path / "wrong")]) == 0
    assert "import vocab.txt again with --cased" in capsys.readouterr().err
    (tmp_path / "text.txt").write_text("Paris the Berlin.\n\nthe Berlin Paris.\n", "utf-8")
    corpus = str(tmp_path / "corpus")
    build = ["corpus", "build", str(tmp_path / "text.txt"), "--tokenizer", str(tmp_path / "wrong"), "--out", corpus]
    assert main([*build, "--workers", "1"]) == 0
    assert main(["doctor", "--corpus", corpus, "--quick"]) == 1
    assert "import vocab.txt again with --cased" in capsys.readouterr().out
    assert main([*begin, str(tmp_path / "right"), "--cased"]) == 0
    assert "again" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("end", "status"),
    [(0, 0), (2, 2), (SystemExit(143), 143), (SystemExit(), 0), (SystemExit("why"), 1), (ValueError("why"), 1)],
)
def test_one_of_several_processes_ends_with_its_own_exit_code(
    end: int | BaseException, status: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended() -> int:
        if isinstance(end, int):
            return end
        raise end

    class Left(Exception):
        pass

    def leave(code: int) -> None:
        raise Left(code)

    monkeypatch.setattr(cli, "main", ended)
    monkeypatch.setattr(os, "_exit", leave)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(Left) as left:
        cli.process()
    assert left.value.args == (status,)
    assert ("why" in capsys.readouterr().err) == (status == 1)
    monkeypatch.setenv("WORLD_SIZE", "1")
    with pytest.raises(type(end) if isinstance(end, BaseException) else SystemExit) as alone:
        cli.process()
    assert isinstance(end, BaseException) or alone.value.code == status


def test_the_pretraining_run_has_its_files_and_metrics(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_folder = base / "run"
    assert {"run.json", "metrics.jsonl", "model", "loss.png", "checkpoints"} <= {
        path.name for path in run_folder.iterdir()
    }
    record = json.loads((run_folder / "run.json").read_text())
    assert record["resolved"]["steps"] == 12
    assert record["settings"]["batch_size"] == 8
    held_out = [
        json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines() if "held_out" in line
    ]
    assert [line["step"] for line in held_out] == [6, 12]
    figures, _ = run_json(
        capsys,
        "evaluate",
        "pretraining",
        "--model",
        run_folder,
        "--corpus",
        base / "corpus",
        *"--rows 16 --length 32".split(),
    )
    assert figures["rows"] == 16
    assert 0 < figures["mlm_loss"] < 8
    assert 0 <= figures["nsp_accuracy"] <= 1


def test_a_report_draws_the_evaluations_in_the_folder_blimp_of_its_run(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, pairs = tmp_path / "run", write_blimp(tmp_path / "pairs")
    start = ["pretrain", "--corpus", base / "corpus", "--out", run, "--steps", "4", "--size", "1x64", *TINY]
    run_json(capsys, *start, "--snapshots", "0.5", "--compile", "off")
    snapshot = run / "snapshots" / "step-000000002"
    for model, name in ((snapshot, "half"), (run, "final")):
        run_json(capsys, "evaluate", "blimp", "--model", model, "--data", pairs, "--out", run / "blimp" / name)
    measured = json.loads((run / "blimp" / "half" / "metrics.json").read_text("utf-8"))
    result, _ = run_json(capsys, "report", run)
    page = Path(result["report"]).read_text("utf-8")
    for title in ("mean of the paradigms, over words seen", "phenomena, 20 pairs, over words seen"):
        assert f'aria-label="BLiMP, {title}; chance: 50 %"' in page
    assert f"<td>{measured['accuracy']:.1%}</td>" in page


def test_a_run_ends_with_its_report_and_masks_filled_from_its_corpus(
    base: Path, tuned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = {path: path.read_bytes() for path in (base / "run").rglob("*") if path.is_file() and path.suffix != ".html"}
    for folder in (base / "run", tuned):
        assert (folder / "report.html").read_text("utf-8").startswith("<!DOCTYPE html>")
    assert (base / "run" / "report.html").read_text("utf-8").count("<blockquote>") >= 1
    (base / "corpus").rename(base / "moved")
    try:
        run_json(capsys, "report", base / "run", "--out", tmp_path / "gone.html")
        run_json(capsys, "report", base / "run", "--out", tmp_path / "found.html", "--corpus", base / "moved")
    finally:
        (base / "moved").rename(base / "corpus")
    assert "No masks were filled" in (tmp_path / "gone.html").read_text("utf-8")
    assert "<blockquote>" in (tmp_path / "found.html").read_text("utf-8")
    assert "of one kind" in run_json(capsys, "report", base / "run", tuned, code=2)[1]
    assert kept == {path: path.read_bytes() for path in kept}
    result, _ = run_json(capsys, "runs", base)
    states = {row["name"]: (row["kind"], row["state"], row["steps"]) for row in result["runs"]}
    assert states == {"run": ("pretrain", "finished", 12), "tuned": ("finetune", "finished", states["tuned"][2])}
    assert "expected a folder, found none" in run_json(capsys, "runs", base / "nowhere", code=2)[1]


def test_a_finished_run_resumes_to_nothing_and_a_new_one_is_refused(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = ["pretrain", "--corpus", base / "corpus", "--out", base / "run", "--steps", "12", *TINY]
    options = ["--held-out", "0.2", "--evaluations", "2", "--learning-rate", "1e-3"]
    assert run_json(capsys, *again, *options, "--resume")[0]["steps"] == 12
    moved = shutil.copytree(base / "run", tmp_path / "moved")
    result = run_json(capsys, *again, *options, "--resume", "--out", moved)[0]
    assert (result["out"], result["model"]) == (str(moved), str(moved / "model"))
    assert "--resume" in run_json(capsys, *again, *options, code=2)[1]
    assert (
        "learning_rate is 0.001 there and 0.002 here"
        in run_json(capsys, *again, *options[:-1], "2e-3", "--resume", code=2)[1]
    )


def test_masks_are_filled_and_pairs_judged(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result, _ = run_json(capsys, "fill", "--model", base / "run", "the [MASK] and the [MASK].", "--top-k", "3")
    assert [len(mask) for mask in result["masks"]] == [3, 3]
    assert all(0 < entry["probability"] < 1 for mask in result["masks"] for entry in mask)
    pair, _ = run_json(capsys, "next-sentence", "--model", base / "run", "It rained.", "The street was wet.")
    assert 0 < pair["is_next"] < 1
    assert "[MASK]" in run_json(capsys, "fill", "--model", base / "run", "no mask here", code=2)[1]


def test_sentence_order_is_measured_under_its_name_and_not_taken_for_next_sentence(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = ["pretrain", "--corpus", base / "corpus", "--out", tmp_path / "run", "--steps", "3", *TINY]
    options = ["--second-sentence", "order", "--mask-units", "span", "--static-masks", "2"]
    result, _ = run_json(capsys, *start, *options, "--held-out", "0.2", "--evaluations", "1")
    assert 0 <= result["held_out"]["sop_accuracy"] <= 1
    assert not [name for name in result["held_out"] if name.startswith("nsp")]
    logged = read_jsonl(tmp_path / "run" / "metrics.jsonl")
    assert all("sop" in line and "nsp" not in line for line in logged if "mlm" in line)
    config = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    assert config["architectures"] == ["BertForPreTraining"]
    assert config["bertwright"] == {"second_sentence": "order", "trained_positions": 32}
    held_out = ["evaluate", "pretraining", "--corpus", base / "corpus", "--rows", "16", "--length", "32", "--model"]
    figures, _ = run_json(capsys, *held_out, tmp_path / "run")
    assert figures["sop_loss"] > 0
    assert figures["rows"] == run_json(capsys, *held_out, base / "run")[0]["rows"] == 16
    pair = ["It rained.", "The street was wet."]
    said = run_json(capsys, "next-sentence", "--model", tmp_path / "run", *pair, code=2)[1]
    assert "order" in said
    assert "run/model" in said
    # A folder that does not say so, as others write it, learned next-sentence prediction.
    del config["bertwright"]
    (tmp_path / "run" / "model" / "config.json").write_text(json.dumps(config))
    assert 0 < run_json(capsys, "next-sentence", "--model", tmp_path / "run", *pair)[0]["is_next"] < 1


def test_the_older_options_say_the_same_and_do_not_contradict(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = ["pretrain", "--corpus", base / "corpus", "--steps", "1", *TINY, "--out"]
    run_json(capsys, *start, tmp_path / "run", "--no-next-sentence", "--whole-word-mask")
    examples = json.loads((tmp_path / "run" / "run.json").read_text())["settings"]["examples"]
    assert (examples["second_sentence"], examples["masking"]["units"]) == ("none", "word")
    run_json(capsys, *start, tmp_path / "run", "--second-sentence", "none", "--mask-units", "word", "--resume")
    said = run_json(capsys, "next-sentence", "--model", tmp_path / "run", "It rained.", "It was wet.", code=2)[1]
    assert "no next-sentence head" in said
    for options in (
        ["--no-next-sentence", "--second-sentence", "order"],
        ["--whole-word-mask", "--mask-units", "span"],
    ):
        assert options[1] in run_json(capsys, *start, tmp_path / "x", *options, code=2)[1]
    assert (
        "--static-masks -1: Input should be"
        in run_json(capsys, *start, tmp_path / "x", "--static-masks", "-1", code=2)[1]
    )
    assert not (tmp_path / "x").exists()


def test_finetuning_learns_and_keeps_every_seed(tuned: Path) -> None:
    result = json.loads((tuned / "run.json").read_text())["result"]
    assert len(result["scores"]) == 2
    assert result["mean"] > 0.9
    assert (tuned / "model" / "model.safetensors").is_file()
    config = json.loads((tuned / "model" / "config.json").read_text())
    assert config["id2label"] == {"0": "bad", "1": "good"}
    assert config["architectures"] == ["BertForSequenceClassification"]


def test_prediction_keeps_order_and_fields(
    tuned: Path, reviews: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [{"review": "The tower was lovely.", "id": 7}, {"review": "The bridge was dreadful.", "id": 3}]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run_json(capsys, "predict", "--model", tuned, "--input", tmp_path / "in.jsonl", "--output", tmp_path / "out.jsonl")
    answers = read_jsonl(tmp_path / "out.jsonl")
    assert [(answer["id"], answer["label"]) for answer in answers] == [(7, "good"), (3, "bad")]
    assert sum(answers[0]["probabilities"].values()) == pytest.approx(1, abs=1e-5)
    columns = "--text-column review --label-column verdict".split()
    metrics, said = run_json(capsys, "evaluate", "classify", "--model", tuned, "--data", reviews, *columns)
    assert metrics["accuracy"] > 0.6  # of the best of two seeds, on few rows
    assert metrics["examples"] == 13  # the tenth of 128 rows that training kept
    assert "13" in said


def test_random_weights_need_a_vocabulary_and_then_train(
    base: Path, reviews: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = [
        *"finetune classify --model random:tiny --data".split(),
        reviews,
        *"--text-column review --label-column verdict".split(),
    ]
    assert "--tokenizer" in run_json(capsys, *start, "--out", tmp_path / "x", code=2)[1]
    assert not (tmp_path / "x").exists()
    result, _ = run_json(
        capsys,
        *start,
        "--out",
        tmp_path / "y",
        "--tokenizer",
        base / "tok",
        *"--epochs 1 --batch-size 32 --threads 1 --max-length 16".split(),
    )
    assert json.loads((Path(result["model"]) / "config.json").read_text("utf-8"))["hidden_size"] == 128
    assert (Path(result["model"]) / "vocab.txt").read_bytes() == (base / "tok" / "vocab.txt").read_bytes()


def test_bad_input_names_the_place_and_leaves_nothing(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cases: list[tuple[list[str | Path], str]] = []
    (tmp_path / "empty.txt").write_text("\n\n")
    cases.append((["corpus", "build", tmp_path / "empty.txt", "--tokenizer", base / "tok"], "empty.txt"))
    (tmp_path / "latin.txt").write_bytes(b"good line\ncaf\xe9 line\n")
    cases.append((["corpus", "build", tmp_path / "latin.txt", "--tokenizer", base / "tok"], "latin.txt:2"))
    (tmp_path / "broken.txt.xz").write_bytes(b"\xfd7zXZ\x00\x00\x04not an archive")
    cases.append((["corpus", "build", tmp_path / "broken.txt.xz", "--tokenizer", base / "tok"], "broken.txt.xz"))
    (tmp_path / "twice.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\na\n")
    cases.append((["tokenizer", "import", tmp_path / "twice.txt"], "twice.txt"))
    (tmp_path / "bare.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n")
    cases.append((["tokenizer", "import", tmp_path / "bare.txt"], "[MASK]"))
    (tmp_path / "short.tsv").write_text("words\tlabel\nfine\tyes\nbad\tno\n")
    cases.append((["finetune", "classify", "--model", base / "run", "--data", tmp_path / "short.tsv"], "text"))
    cases.append((["pretrain", "--corpus", tmp_path / "nowhere", "--steps", "3"], "nowhere"))
    start: list[str | Path] = ["pretrain", "--corpus", base / "corpus", *TINY]
    cases.append(([*start, "--steps", "3", "--init-from", tmp_path / "absent"], "absent"))
    cases.append(
        (
            [*start, "--steps", "3", "--init-from", base / "run", "--size", "mini"],
            "expected the size mini (--size mini), got tiny",
        )
    )
    cases.append(([*start, "--minutes", "0"], "minutes"))
    cases.append(([*start, "--steps", "3", "--beta2", "1"], "beta2"))
    cases.append(([*start, "--steps", "3", "--dropout", "1"], "dropout"))
    tuning = [
        "finetune",
        "classify",
        "--model",
        base / "run",
        "--data",
        tmp_path / "short.tsv",
        "--text-column",
        "words",
    ]
    cases.append(([*tuning, "--first-seed", "-1"], "--first-seed -1"))
    cases.append((["pretrain", "--corpus", base / "corpus", "--steps", "3", "--size", "huge"], "huge"))
    cases.append((["pretrain", "--corpus", base / "corpus", "--steps", "3", "--minutes", "3"], "minutes"))
    cases.append((["pretrain", "--corpus", base / "corpus", "--steps", "3", "--lengths", "128:0.5"], "0.5"))
    cases.append((["pretrain", "--corpus", base / "corpus", "--steps", "3", "--mask-share", "1.5"], "share"))
    for number, (arguments, wanted) in enumerate(cases):
        out = tmp_path / f"out{number}"
        _, said = run_json(capsys, *arguments, "--out", out, code=2)
        assert wanted in said, (arguments, said)
        assert not out.exists(), arguments


def test_metrics_that_cannot_be_computed_are_refused(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held_out = ["evaluate", "pretraining", "--model", base / "run", "--corpus", base / "corpus"]
    assert "rows 0" in run_json(capsys, *held_out, "--rows", "0", code=2)[1]
    assert "length 600" in run_json(capsys, *held_out, "--length", "600", code=2)[1]
    assert "got -1" in run_json(capsys, "fill", "--model", base / "run", "a [MASK]", "--top-k", "-1", code=2)[1]
    (tmp_path / "file").write_text("x")
    assert (
        "is a file"
        in run_json(
            capsys, "pretrain", "--corpus", base / "corpus", "--out", tmp_path / "file", "--steps", "1", code=2
        )[1]
    )


def test_a_truncated_shard_is_named(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import shutil

    shutil.copytree(base / "corpus", tmp_path / "corpus")
    shard = next((tmp_path / "corpus").glob("*.arrow"))
    shard.write_bytes(shard.read_bytes()[:-64])
    for command in (
        ["pretrain", "--corpus", tmp_path / "corpus", "--out", tmp_path / "r", "--steps", "2"],
        ["corpus", "verify", tmp_path / "corpus"],
    ):
        assert shard.name in run_json(capsys, *command, code=2)[1]


def test_a_foreign_tokenizer_is_refused(
    base: Path, tmp_path: Path, own_text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_json(capsys, "tokenizer", "train", own_text, "--vocab-size", "650", "--out", tmp_path / "tok")
    run_json(
        capsys,
        "corpus",
        "build",
        own_text,
        "--tokenizer",
        tmp_path / "tok",
        "--out",
        tmp_path / "corpus",
        "--workers",
        "1",
    )
    said = run_json(
        capsys, "evaluate", "pretraining", "--model", base / "run", "--corpus", tmp_path / "corpus", code=2
    )[1]
    assert "another tokenizer" in said
    start = [
        "pretrain",
        "--corpus",
        base / "corpus",
        "--out",
        tmp_path / "r",
        "--steps",
        "2",
        "--held-out",
        tmp_path / "corpus",
        *TINY,
    ]
    assert "another tokenizer" in run_json(capsys, *start, code=2)[1]


def test_a_label_never_seen_in_training_is_refused(
    tuned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "odd.csv").write_text("review,verdict\nThe tower was lovely.,good\nThe tower was odd.,strange\n")
    columns = ["--text-column", "review", "--label-column", "verdict"]
    said = run_json(capsys, "evaluate", "classify", "--model", tuned, "--data", tmp_path / "odd.csv", *columns, code=2)[
        1
    ]
    assert "strange" in said
    assert "odd.csv:3" in said


def test_inspect_prints_for_people_and_for_programs(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result, _ = run_json(capsys, "corpus", "inspect", base / "corpus")
    assert result["documents"] == 12
    assert main(["corpus", "inspect", str(base / "corpus")]) == 0
    assert "documents" in capsys.readouterr().out


def test_several_corpora_share_the_rows(
    base: Path, own_text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other.txt").write_text("\n\n".join(f"Talk {n}. {own_text.read_text()[:900]}" for n in range(9)))
    run_json(
        capsys, "corpus", "build", tmp_path / "other.txt", "--tokenizer", base / "tok", "--out", tmp_path / "other"
    )
    options = ["--size", "2x128", "--lengths", "32", "--batch-size", "8", "--steps", "3", "--held-out", "0.3"]
    two = ["--corpus", f"{base / 'corpus'}=3", "--corpus", f"{tmp_path / 'other'}=1"]
    result, _ = run_json(capsys, "pretrain", *two, *options, "--out", tmp_path / "run")
    assert result["steps"] == 3
    data = json.loads((tmp_path / "run" / "run.json").read_text())["data"]["corpus"]
    assert [entry["weight"] for entry in data] == [3, 1]
    assert len({entry["fingerprint"] for entry in data}) == 2
    other = ["--corpus", f"{base / 'corpus'}=2", "--corpus", f"{tmp_path / 'other'}=1"]
    assert (
        "another configuration"
        in run_json(capsys, "pretrain", *other, *options, "--out", tmp_path / "run", "--resume", code=2)[1]
    )
    for bad, message in (([two[1]] * 2, "several different ones"), ([f"{base / 'corpus'}=x"], "write FOLDER=WEIGHT")):
        repeated = [word for corpus in bad for word in ("--corpus", corpus)]
        assert message in run_json(capsys, "pretrain", *repeated, *options, "--out", tmp_path / "no", code=2)[1]


def test_a_model_answers_as_many_texts_as_it_learned_from(
    tuned: Path, reviews: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = ["--text-column", "review", "--text-column", "day"]
    for command in (
        ["predict", "--model", tuned, "--input", reviews, "--output", tmp_path / "out.csv", *columns],
        ["evaluate", "classify", "--model", tuned, "--data", reviews, *columns, "--label-column", "verdict"],
    ):
        assert (
            "was fine-tuned on 1 text column(s) (review), got 2 (review, day)" in run_json(capsys, *command, code=2)[1]
        )


def test_more_tokens_than_positions_are_refused_before_training(
    base: Path, reviews: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = ["--text-column", "review", "--label-column", "verdict"]
    start = ["finetune", "classify", "--model", base / "run", "--data", reviews, "--out", tmp_path / "run", *columns]
    assert "takes at most 512 tokens" in run_json(capsys, *start, "--max-length", "1000", code=2)[1]
    assert not (tmp_path / "run").exists()


def test_long_cells_and_large_seeds(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long = "lovely " * 30_000
    (tmp_path / "long.csv").write_text("review,verdict\n" + f'"{long}",good\n"dreadful",bad\n"dull",bad\n' * 12)
    columns = ["--text-column", "review", "--label-column", "verdict", "--epochs", "1", "--batch-size", "4"]
    start = ["finetune", "classify", "--model", base / "run", "--data", tmp_path / "long.csv", *columns]
    run_json(capsys, *start, "--out", tmp_path / "run", "--max-length", "32")
    corpus = ["--corpus", base / "corpus", "--out", tmp_path / "no", "--steps", "1", *TINY]
    assert "seed" in run_json(capsys, "pretrain", *corpus, "--seed", str(10**23), code=2)[1]
    assert "--learning-rate inf" in run_json(capsys, "pretrain", *corpus, "--learning-rate", "inf", code=2)[1]
    assert not (tmp_path / "no").exists()


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """Records what is sent to any tracker, whose package need not be installed."""
    recorder = Recorder()
    monkeypatch.setattr("bertwright.training.tracked_run.refuse_missing_tracker", lambda name: None)
    monkeypatch.setattr("bertwright.commands.reports.refuse_missing_tracker", lambda name: None)
    monkeypatch.setattr("bertwright.training.tracked_run.make_tracker", recorder.make)
    return recorder


def flat_metrics(folder: Path) -> dict[tuple[str, int], float]:
    """The numbers of metrics.jsonl by name and step, but for those that depend on the clock."""
    numbers = {
        (name if name in line else f"held_out/{name}", line["step"]): float(value)
        for line in read_jsonl(folder / "metrics.jsonl")
        for name, value in {**line, **line.get("held_out", {})}.items()
        if name not in ("step", "held_out")
    }
    return {key: value for key, value in numbers.items() if key[0] not in TIMED}


TIMED = ("seconds", "data_share", "tokens_per_second", "mfu")


def test_a_crashed_pretraining_goes_on_in_its_tracker_without_double_points(
    base: Path, tmp_path: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = ["pretrain", "--corpus", str(base / "corpus"), "--out", str(tmp_path / "run"), "--steps", "12", *TINY]
    start += ["--log-every", "3", "--held-out", "0.2", "--evaluations", "2", "--track", "wandb", "--track", "wandb"]
    log = Loop.log

    def crash(loop: Loop, done: int) -> None:
        log(loop, done)
        if done == 9:
            raise RunFailed("the power failed")

    with monkeypatch.context() as changed:
        changed.setattr(Loop, "log", crash)
        assert main(start) == 1
    assert max(step for _, step in recorder.values("run")) == 9
    assert main([*start, "--resume"]) == 0  # from step 0, as there was no checkpoint
    sent = {key: value for key, value in recorder.values("run").items() if key[0] not in TIMED}
    finals = {key: value for key, value in sent.items() if key[0].startswith("final/")}
    metrics = flat_metrics(tmp_path / "run")
    assert {key: value for key, value in sent.items() if key not in finals} == metrics
    assert finals[("final/mlm_loss", 12)] == metrics[("held_out/mlm_loss", 12)]
    assert recorder.states == [("run", "failed"), ("run", "finished")]
    assert recorder.runs["run"].parameters["batch_size"] == 8


def test_a_finetuning_survives_its_tracker_and_its_seeds_are_sent_afterwards(
    base: Path,
    reviews: Path,
    tmp_path: Path,
    recorder: Recorder,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "tuned"
    start = ["finetune", "classify", "--model", str(base / "run"), "--data", str(reviews), "--out", str(out)]
    start += "--text-column review --label-column verdict --epochs 1 --seeds 2 --threads 1 --track mlflow".split()
    with monkeypatch.context() as changed:
        changed.setattr("bertwright.training.tracked_run.make_tracker", lambda name: FailingTracker(recorder))
        assert main(start) == 0
    warnings = [line for line in capsys.readouterr().err.splitlines() if "--track mlflow" in line]
    assert len(warnings) == 1, warnings
    assert "no route to the server" in warnings[0]
    sent, _ = run_json(capsys, "track", out, "--to", "mlflow")
    assert sent["runs"] == 2
    for seed in ("seed-0", "seed-1"):
        points = recorder.values(f"tuned-{seed}")
        metrics = flat_metrics(out / seed)
        assert metrics.items() <= points.items()
        result = json.loads((out / seed / "run.json").read_text())["result"]
        assert points[("final/accuracy", max(step for _, step in metrics))] == result["scores"]["accuracy"]
        described = recorder.runs[f"tuned-{seed}"]
        assert (described.group, described.parameters["seed"]) == ("tuned", int(seed[-1]))
    sent, _ = run_json(capsys, "track", out, "--to", "mlflow")
    assert sent["points"] == 0
    with monkeypatch.context() as changed:
        changed.setattr("bertwright.training.tracked_run.make_tracker", lambda name: FailingTracker(Recorder()))
        _, errors = run_json(capsys, "track", out, "--to", "mlflow", code=1)
    assert "sending to mlflow failed: OSError: no route to the server" in errors


def test_a_tracker_without_its_package_is_refused_before_the_run(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("bertwright.tracking.tracker.find_spec", lambda name: None)
    start = ["pretrain", "--corpus", str(base / "corpus"), "--out", str(tmp_path / "run"), "--steps", "12", *TINY]
    assert main([*start, "--track", "mlflow"]) == 2
    assert "--track mlflow needs the extra 'mlflow': pip install 'bertwright[mlflow]'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
