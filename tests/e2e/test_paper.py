"""bertwright paper at the scale of seconds: pages, stops and repeats, what is missing, failed or another's."""

import json
import re
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bertwright.cli import main
from bertwright.errors import RunFailed
from bertwright.experiments import forecast, scales
from bertwright.experiments import run as module
from bertwright.training import loop
from bertwright.training.run_lock import locked
from tests.support.paper_data import write_data

TEXT = Path(__file__).parents[1] / "fixtures" / "own_text.txt"


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """TaskData without QNLI, and a folder with an experiment of two arms, two seeds and one task."""
    folder = tmp_path_factory.mktemp("paper")
    write_data(folder / "data", without=["qnli"])
    assert main(["paper", "table5", *options(folder, folder / "out"), "--arms", "bert,no-nsp", "--tasks", "rte"]) == 0
    return folder


def options(made: Path, out: Path) -> list[str]:
    corpus = ["--corpus", str(TEXT)]
    return ["--scale", "smoke", "--out", str(out), "--data", str(made / "data"), *corpus]


def with_corpora(made: Path, out: Path) -> Path:
    """A folder with nothing but the corpora."""
    shutil.copytree(made / "out" / "corpora", out / "corpora")
    return out


def copied(made: Path, out: Path) -> Path:
    """A folder with all that the study made."""
    return Path(shutil.copytree(made / "out", out))


def paper(
    capsys: pytest.CaptureFixture[str], made: Path, out: Path, *arguments: str, code: int = 0
) -> tuple[dict[str, Any], str]:
    capsys.readouterr()
    assert main(["paper", *arguments, *options(made, out), "--json"]) == code
    captured = capsys.readouterr()
    return (json.loads(captured.out.splitlines()[-1]) if captured.out else {}), captured.err


def page_of(out: Path, name: str = "table5") -> str:
    return (out / "results" / f"{name}.md").read_text("utf-8")


def measured_table(page: str) -> list[str]:
    """Return the table of our own metrics."""
    return page[page.index("## Here") : page.index("## In the paper")].splitlines()


TWO = ("--arms", "bert,no-nsp", "--tasks", "rte")


def test_without_a_name_it_lists_the_experiments(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["paper"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("table1", "table8", "figure5", "gpt-table5", "length-cost"))


def test_the_page_says_all_of_it(study: Path) -> None:
    page = page_of(study / "out")
    assert re.search(r"\| BERT \(`bert`\) \| \d+\.\d ± \d+\.\d \|", page)
    assert "| left-to-right, no NSP | 82.1 | 84.3 | 77.5 | 92.1 | 77.8 |" in page
    assert re.search(r"\| the commonest answer \(`majority`\) \| \d+\.\d \|", page)
    few = r"A verdict needs 2 pre-trainings of both models; `bert` has 1, `no-nsp` has 1\."
    assert re.search(rf"1\. Next-sentence .* \*\*(Undecided\.\*\* RTE .* {few}|Cannot be tested here\.\*\*)", page)
    assert page.count("**No verdict.** `left` is not on this page.") == 1
    assert page.count("**No verdict.** `left` and `left-bilstm` are not on this page.") == 2
    assert page.count("**No verdict.** `left-bilstm` is not on this page.") == 1
    assert "In the paper's table and not measured here: MNLI-m, QNLI, MRPC, SST-2, SQuAD 1.1 F1." in page
    assert "Not in the paper's table: RTE." in page
    assert page.count("An *arm* is a model or a baseline.") == 1
    assert "`bert` against `no-nsp`; start `random`; δ 0.75." in page
    assert re.search(
        r"- Claims, seeds and δ were locked before the runs \(digest of the claims: [0-9a-f]{12}\)\.", page
    )
    parts = ["## Question", "## Answer", "table5-claims.png", "## Here", "## How sure", "## What this does not show"]
    parts += ["## In the paper", "## The data", "<details>", "**The command**", "</details>"]
    assert sorted(parts, key=page.index) == parts
    assert "of the last epoch." in page
    assert "- RTE: rows of train 24 of 40, dev 12 of 20." in page
    assert re.search(r"\| all, each once \| 2 \| 0\.0 M \| \d+ (s|min) \| \d+ (s|min) \|", page)
    assert re.search(r"- Corpus `wordpiece-400`: [\d,]+ tokens in \d+ documents, a vocabulary of \d+; its finger", page)
    assert '- `no-nsp`: pre-training `{"examples": {"second_sentence": "none"}}`' in page
    assert "bertwright paper table5 --scale smoke --out out --arms bert,no-nsp --tasks rte" in page
    assert (study / "out/results/table5-claims.png").read_bytes().startswith(b"\x89PNG")
    assert "\nComputed on processors, in fp32.\n" in page
    assert "\nMasked LM predicts 15 % of the tokens, where an arm names no other share." in page
    assert "`--mask-share` is 0.3 there." in page
    assert (
        "`DATA` is the folder with the files of the tasks. `TEXT` is the text of a corpus, or a corpus folder" in page
    )
    assert "Not finished" not in page


def test_the_page_says_where_a_gpu_computed_some_of_it(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = copied(study, tmp_path / "out")
    for path in (out / "tuned/rte").glob("*/run.json"):
        record = json.loads(path.read_text())
        record["resolved"] |= {"device": "cuda", "precision": "bf16"}
        path.write_text(json.dumps(record))
    paper(capsys, study, out, "table5", *TWO, "--page")
    words = "Computed on GPUs and processors, in bf16 and fp32.\n`run.json` of each run has its device. Times"
    assert words in page_of(out)


def test_only_the_figures_of_fine_tunings_stay(study: Path) -> None:
    tuned = list((study / "out/tuned/rte").iterdir())
    assert len([path for path in tuned if not path.name.startswith("majority")]) == 4
    assert not list((study / "out/tuned").rglob("*.safetensors"))
    assert not list((study / "out/pretrained").glob("*/checkpoints"))
    assert len(list((study / "out/pretrained").glob("*/model/model.safetensors"))) == 2


def test_repeated_it_computes_nothing_more(
    study: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop.Loop, "step", None)
    before = measured_table(page_of(study / "out"))
    result, stderr = paper(capsys, study, study / "out", "table5", *TWO)
    assert "everything is computed: 2 pre-trainings, 5 measurements on tasks" in stderr
    assert result["left"] == {"pretrainings": 0, "measurements": 0}
    assert measured_table(page_of(study / "out")) == before


@pytest.mark.parametrize(
    "moment",
    [
        "fine-tuning",
        *(pytest.param(one, marks=pytest.mark.slow) for one in ("pre-training", "its last step", "measuring")),
    ],
)
def test_stopped_and_repeated_it_ends_alike(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """A signal at any moment ends with 0, and the same command then finds what an undisturbed one did."""
    out = with_corpora(study, tmp_path / "out")
    calls = 0

    def interrupting(really: Any, at: int) -> Any:
        def called(*arguments: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == at:
                signal.raise_signal(signal.SIGINT)
            return really(*arguments, **named)

        return called

    name, at = {"pre-training": ("step", 3), "its last step": ("log", 1), "fine-tuning": ("step", 7)}.get(
        moment, ("evaluate", 2)
    )
    with monkeypatch.context() as patched:
        patched.setattr(loop.Loop, name, interrupting(getattr(loop.Loop, name), at))
        _, stderr = paper(capsys, study, out, "table5", *TWO)
    assert "the same command" in stderr or "stopped" in stderr
    assert "**Not finished:**" in page_of(out)
    assert "…" in "".join(measured_table(page_of(out)))
    result, _ = paper(capsys, study, out, "table5", *TWO)
    assert result["left"] == {"pretrainings": 0, "measurements": 0}
    assert measured_table(page_of(out)) == measured_table(page_of(study / "out"))


@pytest.mark.slow
def test_what_was_begun_with_other_settings_is_not_gone_on_with(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = with_corpora(study, tmp_path / "out")
    smoke = scales.get_scale("smoke")
    other = replace(smoke, pretraining={**smoke.pretraining, "batch_size": 2})
    with monkeypatch.context() as patched:
        patched.setattr(scales, "SCALES", {"smoke": other})
        patched.setattr(loop.Loop, "log", lambda self, done: signal.raise_signal(signal.SIGINT))
        paper(capsys, study, out, "table5", *TWO)
    begun = {path.name for path in (out / "pretrained").iterdir()}
    assert len(begun) == 1
    paper(capsys, study, out, "table5", *TWO)
    there = {path.name for path in (out / "pretrained").iterdir()}
    assert len(there) == 3
    assert begun < there
    assert measured_table(page_of(out)) == measured_table(page_of(study / "out"))


def test_what_is_missing_is_reported_and_left_out(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result, stderr = paper(capsys, study, study / "out", "table5", "--arms", "bert", "--page")
    wanted = "QNLI: its files are not in .*/data; fetch train.tsv and dev.tsv of GLUE's QNLI .*, into glue/QNLI"
    assert any(re.fullmatch(wanted, line) for line in result["left_out"])
    assert re.search(rf"left out: {wanted}", stderr)
    page = page_of(study / "out")
    assert re.search(rf"- Left out: {wanted}\.", page)
    assert "QNLI" not in measured_table(page)[2]


def test_without_any_data_no_corpus_is_made(study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["paper", "table4", *options(tmp_path, tmp_path / "out")]) == 2
    assert "nothing of it can be computed here:\n  SWAG: its files are not in" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_record_without_weights_is_said_to_be_that(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Records without weights, as of others' runs: their metrics stay on the page, and nothing more is computed."""
    out = copied(study, tmp_path / "out")
    for folder in (out / "pretrained").iterdir():
        shutil.rmtree(folder / "model")
    result, _ = paper(capsys, study, out, "table5", *TWO)
    assert result["failed"] == {}
    assert "Not finished" not in page_of(out)
    result, _ = paper(capsys, study, out, "table5", "--arms", "bert", "--tasks", "rte,sst2", code=1)
    (folder,) = result["failed"]
    assert result["failed"][folder] == (
        "expected the weights of a finished run, got none; remove the folder to train it again"
    )
    shutil.rmtree(folder)
    result, _ = paper(capsys, study, out, "table5", "--arms", "bert", "--tasks", "rte,sst2")
    assert result["left"] == {"pretrainings": 0, "measurements": 0}


def test_a_corpus_that_is_not_there_leaves_its_arms_out(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["paper", "table5", *options(study, tmp_path / "out")[:6], "--tasks", "rte"]) == 2
    stderr = capsys.readouterr().err
    assert "nothing of it can be computed here:\n  BERT, not pre-trained, BERT, no NSP, " in stderr
    assert ": --corpus: name a WordPiece corpus, or the text to build it from\n" in stderr
    typed = ["paper", "table5", *options(study, tmp_path / "out")[:6], "--tasks", "rte", "--corpus", "wkii", "--page"]
    (tmp_path / "out" / "corpora").mkdir()
    assert main(typed) == 2
    assert "wordpiece-400 is not built yet, and --corpus wkii is not a corpus folder" in capsys.readouterr().err


def test_the_page_alone_computes_nothing(study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = with_corpora(study, tmp_path / "out")
    result, stderr = paper(capsys, study, out, "table5", *TWO, "--page")
    assert "missing: 2 of 2 pre-trainings and 5 of 5 measurements on tasks; the time is unknown until" in stderr
    assert result["left"] == {"pretrainings": 2, "measurements": 5}
    assert not (out / "pretrained").exists()
    assert "| BERT (`bert`) | … |" in page_of(out)
    assert "| all, each once | 0 | 0.0 M | 0 s | 0 s |" in page_of(out)
    assert "**No verdict.** `bert` and `no-nsp` are not computed yet." in page_of(out)
    assert not (out / "results/table5-claims.png").exists()
    assert not (out / "locks").exists()


def test_a_page_is_written_from_the_records_alone(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = copied(study, tmp_path / "out")
    paper(capsys, study, out, "table5", *TWO, "--page")
    before = page_of(out)
    for folder in (*(out / "corpora").iterdir(), *(out / "tasks").iterdir()):
        if folder.is_dir():
            shutil.rmtree(folder)
    (out / "results/table5.md").unlink()
    typed = ["paper", "table5", *TWO, "--scale", "smoke", "--out", str(out), "--page"]
    assert main([*typed, "--data", str(tmp_path / "nowhere")]) == 0
    assert page_of(out) == before
    other = write_data(tmp_path / "other")
    rows = other / "glue/RTE/train.tsv"
    rows.write_text(rows.read_text().replace("lovely", "fine"))
    capsys.readouterr()
    assert main([*typed, "--data", str(other)]) == 0
    assert "RTE: the files in " in capsys.readouterr().err
    assert page_of(out) == before


@pytest.mark.parametrize("exists", [False, True])
def test_a_page_of_an_empty_folder_is_refused_and_nothing_is_made(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], exists: bool
) -> None:
    out = tmp_path / "out"
    if exists:
        out.mkdir()
    _, stderr = paper(capsys, study, out, "table5", *TWO, "--page", code=2)
    assert f"--page: {out} holds no part of an experiment; expected the --out folder of an earlier run" in stderr
    assert [path.name for path in tmp_path.rglob("*")] == (["out"] if exists else [])
    _, stderr = paper(capsys, study, out, "table5", *TWO, "--page", "--plan", code=2)
    assert "--page, --plan: expected one of the two, got both" in stderr


def test_the_plan_of_an_experiment_is_printed_and_nothing_is_made(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its numbers are those of the run in `study`, which had the same arms and tasks."""
    out = tmp_path / "out"

    def plan(flops: float, folder: Path = out) -> dict[str, Any]:
        monkeypatch.setattr(forecast, "square_rates", lambda *_: {"fp32": flops})
        return paper(capsys, study, folder, "table5", *TWO, "--plan")[0]

    planned = plan(1e9)
    assert planned["pretrainings"] == {"to_compute": 2, "all": 2}
    assert planned["measurements"] == {"to_compute": 5, "all": 5}
    assert [(row["system"], row["size"], row["count"], row["tokens"]) for row in planned["models"]] == [
        ("bert", "2x128", 2, 6 * 4 * 16)
    ]
    assert planned["corpora_to_build"] == ["wordpiece-documents"]
    faster = plan(4e9)
    for part in ("pretraining", "tasks"):
        assert planned["hours"][part] == pytest.approx(4 * faster["hours"][part])
        assert planned["hours"][part] > 0.0
    sizes = [path.stat().st_size for path in (study / "out" / "pretrained").rglob("model.safetensors")]
    checkpoint = 3 * max(sizes)  # weights and two moments; three checkpoints exist at the same time
    assert planned["disk"]["bytes"] == pytest.approx(sum(sizes) + 3 * checkpoint, rel=0.02)
    assert list(tmp_path.iterdir()) == []
    finished = plan(1e9, study / "out")
    assert finished["pretrainings"] == {"to_compute": 0, "all": 2}
    assert finished["hours"] == {"pretraining": 0.0, "tasks": 0.0}
    assert finished["corpora_to_build"] == []
    assert main(["paper", "table5", *TWO, *options(study, out), "--plan"]) == 0
    shown = capsys.readouterr().out
    assert "2 x bert 2x128: 384 tokens each, about " in shown
    assert re.search(
        r"  time       about .* for pre-training, at most about .* for the tasks\n  disk       about", shown
    )


@pytest.mark.parametrize(
    ("name", "task", "counts"),
    [
        ("table7", "ner", {"bert": 2, "lstm-left": 1, "lstm-right": 1, "bert-left": 1, "bert-right": 1}),
        ("figure5", "mnli", {"bert": 2, "bert-left": 1}),
    ],
)
def test_the_plan_counts_each_model_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, task: str, counts: dict[str, int]
) -> None:
    """Arms share models: pairs that are joined, and models that are taken before their end."""
    write_data(tmp_path / "data")
    planned, _ = paper(capsys, tmp_path, tmp_path / "out", name, "--tasks", task, "--plan")
    systems: dict[str, int] = {}
    for row in planned["models"]:
        systems[row["system"]] = systems.get(row["system"], 0) + row["count"]
    assert systems == counts
    assert not (tmp_path / "out").exists()


def test_a_plan_counts_the_measurements_whose_data_are_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without any data, the models are planned as with them, and no measurement is left out of the count."""
    write_data(tmp_path / "data")
    complete, _ = paper(capsys, tmp_path, tmp_path / "out", "table5", *TWO, "--plan")
    (tmp_path / "data" / "glue").rename(tmp_path / "data" / "elsewhere")
    waiting, stderr = paper(capsys, tmp_path, tmp_path / "out", "table5", *TWO, "--plan")
    for part in ("pretrainings", "measurements"):
        assert waiting[part] == complete[part]
    assert [row["count"] for row in waiting["models"]] == [row["count"] for row in complete["models"]] == [2]
    (message,) = waiting["waiting_for_data"]
    assert message.startswith(f"RTE: its files are not in {tmp_path / 'data'}; fetch train.tsv and dev.tsv of GLUE's ")
    assert waiting["waiting_for_data"][message] == 5
    assert complete["waiting_for_data"] == {}
    assert waiting["hours"]["tasks"] == 0.0
    assert "left out" not in stderr
    assert main(["paper", "table5", *TWO, *options(tmp_path, tmp_path / "out"), "--plan"]) == 0
    shown = capsys.readouterr().out
    assert "  tasks      5 of 5 measurements to compute\n             5 of them wait for data, and are not" in shown


def test_the_time_left_is_estimated_from_measured_times(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, stderr = paper(
        capsys, study, study / "out", "table5", *TWO, "--seeds", "3", "--pretraining-seeds", "2", "--page"
    )
    left = r"missing: 2 of 4 pre-trainings and 8 of 13 measurements on tasks; about \d+ (s|min) to compute them\n"
    assert re.search(left, stderr)


def test_a_page_that_differs_from_its_lock_says_so(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = copied(study, tmp_path / "out")
    (lock,) = (out / "locks").iterdir()
    assert lock.name == "table5-smoke.json"
    content = json.loads(lock.read_text())
    assert (content["seeds"], content["pretraining_seeds"], content["parts_finished_before"]) == (2, 1, 0)
    content["claims"][0]["delta"] = 3.0
    lock.write_text(json.dumps({**content, "pretraining_seeds": 2}))
    paper(capsys, study, out, "table5", *TWO, "--page")
    page = page_of(out)
    assert "- **Not as locked:** pre-training seeds: locked 2, here 1." in page
    assert re.search(r"- \*\*Not as locked:\*\* the claim “Next-sentence .*”: delta was 3\.0, is 0\.75\.", page)
    assert "- **Fewer seeds than locked:** pre-trainings, of 2: `bert` 1, `no-nsp` 1." in page
    lock.unlink()
    paper(capsys, study, out, "table5", *TWO, "--page")
    assert "- **No lock.** " in page_of(out)


def test_records_of_another_version_and_a_lock_that_cannot_be_used_are_named(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = copied(study, tmp_path / "out")
    for path in (out / "tuned/rte").glob("*-seed0.0-*/run.json"):
        record = json.loads(path.read_text())
        record["versions"]["bertwright"] = "0.0.1"
        path.write_text(json.dumps(record))
    (lock,) = (out / "locks").iterdir()
    lock.write_text("[]")
    paper(capsys, study, out, "table5", *TWO, "--page")
    page = page_of(out)
    assert "- **Records of another version of the program:** 0.0.1 (`bert`, `no-nsp`). This page was written by" in page
    assert "- The folder has fine-tunings by other versions of the program: 0.0.1. Those on" in page
    assert "- **The lock cannot be used:** " in page
    assert "table5-smoke.json: expected a JSON object, got a list." in page


def test_fewer_fine_tunings_than_locked_are_named(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = copied(study, tmp_path / "out")
    shutil.rmtree(sorted((out / "tuned/rte").glob("*-seed0.1-*"))[0])
    paper(capsys, study, out, "table5", *TWO, "--page")
    page = page_of(out)
    assert re.search(r"- \*\*Fewer seeds than locked:\*\* fine-tunings, of 2: `(bert|no-nsp)` 1", page)
    assert "**No verdict.** No task has all scores of both." in page
    assert "… (1 of 2)" in page


def test_records_without_each_epoch_have_the_best_and_the_page_says_so(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Records of earlier versions hold the best epoch only; one of them makes all scores of a page the best ones."""
    out = copied(study, tmp_path / "out")
    path = sorted((out / "tuned/rte").glob("*/run.json"))[0]
    record = json.loads(path.read_text())
    assert len(record["result"]["seeds"][0].pop("epochs")) == 1
    path.write_text(json.dumps(record))
    paper(capsys, study, out, "table5", *TWO, "--page")
    assert "of the best epoch, which was chosen on the same rows." in page_of(out)
    assert "- The records do not hold the scores of the last epoch" in page_of(out)


def test_an_arm_that_fails_leaves_the_others_alone(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = with_corpora(study, tmp_path / "out")
    really = module.pretrain

    def failing(settings: Any, **named: Any) -> Any:
        if settings.examples.pairs:
            raise RunFailed("the loss is not finite")
        return really(settings, **named)

    monkeypatch.setattr(module, "pretrain", failing)
    result, _ = paper(capsys, study, out, "table5", *TWO, "--seeds", "1", code=1)
    assert list(result["failed"].values()) == ["the loss is not finite"]
    assert result["left"] == {"pretrainings": 1, "measurements": 1}
    page = page_of(out)
    assert re.search(r"## What failed\n\n- `bert-2x128-seed0-[0-9a-f]{12}`: the loss is not finite", page)
    assert re.search(r"\| no NSP \(`no-nsp`\) \| \d", page)


def test_what_another_process_is_at_is_left_to_it(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = copied(study, tmp_path / "out")
    last = sorted((out / "tuned/rte").iterdir())[0]
    record = json.loads((last / "run.json").read_text())
    (last / "run.json").write_text(json.dumps({**record, "finished": False}))
    with locked(last):
        result, stderr = paper(capsys, study, out, "table5", *TWO)
    assert result["elsewhere"] == [str(last)]
    assert "skipped, because another process computes it" in stderr
    assert result["left"] == {"pretrainings": 0, "measurements": 1}


def test_what_another_process_finished_meanwhile_is_not_begun_again(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parts of an arm are listed before the first is done, and the other process may do the last of them."""
    out = copied(study, tmp_path / "out")
    records = {path.parent: path.read_text() for path in (out / "tuned/rte").glob("*/run.json")}
    for folder, record in records.items():
        (folder / "run.json").write_text(json.dumps({**json.loads(record), "finished": False}))
    measured = []

    def all_done(_: Any, job: Any) -> None:
        measured.append(job.folder)
        for folder, record in records.items():
            (folder / "run.json").write_text(record)

    monkeypatch.setattr(module.ExperimentRun, "_measure", all_done)
    result, _ = paper(capsys, study, out, "table5", "--arms", "bert", "--tasks", "rte")
    assert len(measured) == 1
    assert result["left"] == {"pretrainings": 0, "measurements": 0}


@pytest.mark.slow
def test_baselines_untrained_models_and_two_sizes(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = with_corpora(study, tmp_path / "out")
    arms = ("--arms", "bag-of-words,untrained,bert", "--tasks", "sst2,mnli", "--seeds", "1")
    result, _ = paper(capsys, study, out, "table1", *arms)
    assert result["left"] == {"pretrainings": 0, "measurements": 0}
    page = page_of(out, "table1")
    row = re.search(r"\| bag of words, linear \(`bag-of-words`\) \| (\S+) \| (\S+) \| (\S+) \| (\S+) \|", page)
    assert row
    matched, mismatched, sentiment, above_floor = map(float, row.groups())
    assert sentiment == 100
    assert "| the commonest answer (`majority`) | 33.3 | 33.3 | 66.7 | 0.0 |" in page
    mean = ((matched - 100 / 3) / (200 / 3) + (mismatched - 100 / 3) / (200 / 3) + 1) / 3
    assert above_floor == pytest.approx(100 * mean, abs=0.1)
    assert re.search(r"than a linear model .* A verdict needs 2 pre-trainings of both models; `bert` has 1\.", page)
    untrained = [path for path in (out / "pretrained").iterdir() if not (path / "run.json").exists()]
    assert len(untrained) == 1
    assert (untrained[0] / "model/model.safetensors").is_file()


def test_a_line_over_shares_of_one_pre_training(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = with_corpora(study, tmp_path / "out")
    result, _ = paper(capsys, study, out, "figure5", "--arms", "bert-40,bert-100", "--tasks", "rte", "--seeds", "1")
    assert result["left"] == {"pretrainings": 0, "measurements": 0}
    assert len(list((out / "pretrained").iterdir())) == 1
    models = {
        json.loads((path / "run.json").read_text())["data"]["model"] for path in (out / "tuned/rte").glob("bert*")
    }
    assert sorted(Path(model).name for model in models) == ["model", "step-000000002"]
    page = page_of(out, "figure5")
    assert "after 40% of the steps" in page
    assert "An arm that is taken before the end of a pre-training counts with the whole of it." in page
    assert (out / "results/figure5.png").is_file()


def test_what_pre_training_itself_costs(study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = with_corpora(study, tmp_path / "out")
    paper(capsys, study, out, "length-cost", "--tasks", "rte", "--seeds", "1")
    row = re.search(r"\| rows of 32 \(`long`\) \| ([\d,.]+) \| ([\d,.]+) \| ([\d,.]+) \|", page_of(out, "length-cost"))
    assert row
    seconds, megabytes, perplexity = (float(cell.replace(",", "")) for cell in row.groups())
    assert seconds > 0
    assert 50 < megabytes < 10_000
    assert 100 < perplexity < 1000  # of 400 pieces, hardly learned


def test_without_the_data_of_any_task_the_perplexities_are_there(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = with_corpora(study, tmp_path / "out")
    (tmp_path / "data").mkdir()
    result, _ = paper(capsys, tmp_path, out, "table6", "--arms", "size-1,fewer-heads")
    assert result["left"] == {"pretrainings": 0, "measurements": 0}
    rows = r"\| 2x128 \(`size-1`\) \| \d+\.\d+ \|\n\| 4x128x1 \(`fewer-heads`\) \| \d+\.\d+ \|\n\n"
    whole = rf"\|  \| perplexity \|\n\|---\|---\|\n{rows}"
    assert re.search(whole, page_of(out, "table6"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arms", "task", "kinds"),
    [
        ("table5", "left-bilstm", "rte", ["bert-left-2x128"]),
        ("table7", "elmo-lstm", "ner", ["lstm-left-2x128+lstm-right-2x128"]),
        ("table7", "pair", "wikigold", ["bert-left-2x128+bert-right-2x128"]),
        ("gpt-table5", "gpt,gpt-untrained,no-auxiliary", "stsb", ["gpt-2x128", "gpt-2x128", "gpt-2x128"]),
        ("document-order", "shuffled", "rte", ["bert-2x128"]),
    ],
)
def test_every_kind_of_arm(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, arms: str, task: str, kinds: list[str]
) -> None:
    out = with_corpora(study, tmp_path / "out")
    result, _ = paper(capsys, study, out, name, "--arms", arms, "--tasks", task, "--seeds", "1")
    assert result["failed"] == {}
    assert result["left"] == {"pretrainings": 0, "measurements": 0}
    assert [path.name.partition("-seed")[0] for path in (out / "tuned" / task).glob("*-seed*")] == kinds
    again, stderr = paper(capsys, study, out, name, "--arms", arms, "--tasks", task, "--seeds", "1")
    assert "everything is computed" in stderr
    assert again["page"] == result["page"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["table9"], "paper table9: expected one of batch-size, document-order,"),
        (["table5", "--scale", "huge"], "--scale: expected one of smoke, tiny, mini, small, base, paper, got 'huge'"),
        (
            ["table5", "--arms", "bert,gpt"],
            "--arms: expected arms of table5, untrained, bert, no-nsp, left, left-bilstm; got 'gpt'",
        ),
        (["table5", "--tasks", "swag"], "--tasks: expected tasks of table5, mnli, qnli, mrpc, sst2, squad1,"),
        (["table5", "--arms", ""], "--arms '': expected names with commas between"),
        (["table5", "--tasks", "sst2,"], "--tasks 'sst2,': expected names with commas between"),
        (["table5", "--seeds", "0"], "--seeds 0: expected at least 1"),
        (["table5", "--pretraining-seeds", "-1"], "--pretraining-seeds -1: expected at least 1"),
        (["table5", "--minutes", "5"], "--minutes 5: the arms of table5 have the scale's steps, not minutes"),
        (["table5", "--blimp", "."], "--blimp .: table5 scores no minimal pairs"),
        (["families", "--minutes", "0"], "--minutes 0: expected a number above 0"),
        (["families", "--rate-share", "2"], "--rate-share 2: expected a fraction above 0 and at most 1"),
        (["families", "--blimp", "nowhere"], "--blimp nowhere: there is no such file or folder"),
        (["table5", "--model", "tiny"], "--model tiny: table5 pre-trains its own models; leave --model out"),
        (["using", "--model", "tiny"], "--corpus: using pre-trains nothing; leave --corpus out"),
        (
            ["using", "--pretraining-seeds", "2"],
            "--pretraining-seeds: using pre-trains nothing; set the fine-tunings",
        ),
    ],
)
def test_bad_usage_is_refused(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    typed_options = options(study, tmp_path / "out")
    rest = typed_options[2:] if "--scale" in arguments else typed_options
    assert main(["paper", *arguments, *rest]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_another_text_needs_another_folder(study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.txt").write_text("Another text.\n")
    arguments = [*options(study, study / "out")[:6], "--corpus", str(tmp_path / "text.txt")]
    assert main(["paper", "table5", *arguments]) == 2
    assert "choose another --out" in capsys.readouterr().err
