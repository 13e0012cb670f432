"""Accuracies on minimal pairs: counted by hand from the scores, and a stopped evaluation that continues."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertwright.cli import main
from bertwright.errors import InputError
from bertwright.scoring import evaluate
from bertwright.scoring.evaluate import evaluate_blimp, measure_minimal_pairs
from bertwright.scoring.kept_scores import KeptScores
from bertwright.scoring.scorer import open_scorer
from bertwright.scoring.settings import ScoreSettings
from tests.support.blimp import UIDS, log_likelihoods, made_up_pairs, pair_line, write_blimp, write_lines
from tests.support.encoders import write_encoder


@pytest.fixture(scope="module")
def random_lm(tmp_path_factory: pytest.TempPathFactory, own_tokenizer: Path) -> str:
    return write_encoder(tmp_path_factory.mktemp("pairs") / "masked", own_tokenizer, initializer_range=0.3)


def counted(model: str, uid: str, settings: ScoreSettings) -> float:
    """The fraction of the made-up pairs that the model gets right."""
    scorer, lines = open_scorer(model), made_up_pairs(uid)
    good, bad = (
        log_likelihoods(scorer, [line[name] for line in lines], settings) for name in ("sentence_good", "sentence_bad")
    )
    return float(np.mean(good > bad))


@pytest.mark.parametrize("masking", ["within-word", "piece"])
def test_means_are_those_of_paradigms_and_of_phenomena(random_lm: str, tmp_path: Path, masking: Any) -> None:
    settings = ScoreSettings(masking=masking)
    metrics = measure_minimal_pairs(random_lm, write_blimp(tmp_path / "blimp"), settings=settings)
    expected = {uid: counted(random_lm, uid, settings) for uid in UIDS}
    assert {each.uid: each.accuracy for each in metrics.paradigms} == pytest.approx(expected)
    assert len(set(expected.values())) > 1
    agreement = np.mean([expected[uid] for uid in UIDS if "subject_verb" in uid])
    structure = np.mean([expected["transitive"], expected["animate_subject_trans"]])  # s-selection is part of it
    phenomena = [expected["anaphor_number_agreement"], structure, agreement]
    assert list(metrics.phenomena) == ["anaphor_agreement", "argument_structure", "subject_verb_agreement"]
    assert list(metrics.phenomena.values()) == pytest.approx(phenomena)
    assert metrics.accuracy == pytest.approx(np.mean([*expected.values()]))
    assert metrics.phenomena_accuracy == pytest.approx(np.mean(phenomena))
    assert (metrics.pairs, metrics.ties, metrics.settings) == (20, 0, settings)
    assert len(metrics.absent) == 62
    assert "wh_island" in metrics.absent


def test_ties_are_wrong_and_equal_sentences_are_named(random_lm: str, tmp_path: Path) -> None:
    lines = [
        pair_line("hypernym", 4, "Rain falls.", "Rain falls."),
        pair_line("hypernym", 5, "Rain falls.", "rain falls."),  # the vocabulary is uncased
        *made_up_pairs("hypernym", 1),
    ]
    result = evaluate_blimp(random_lm, write_lines(tmp_path / "p.jsonl", lines))
    right = made_up_pairs("hypernym", 1)[0]
    scorer = open_scorer(random_lm)
    good, bad = log_likelihoods(
        scorer, [right["sentence_good"], right["sentence_bad"]], scorer.resolve(ScoreSettings())
    )
    assert result["accuracy"] == pytest.approx((good > bad) / 3)
    assert (result["pairs"], result["ties"], result["same"], result["absent"]) == (3, 2, ["hypernym 4"], [])
    assert result["paradigms"]["hypernym"]["ties"] == 2
    assert "2 pairs have two equal scores, and count as wrong" in result["text"]
    assert "the same sentence twice: hypernym 4" in result["text"]
    assert "published" not in result["text"]


def test_the_command_prints_a_table_with_the_published_figures(
    random_lm: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["evaluate", "blimp", "--model", random_lm, "--data", str(write_blimp(tmp_path / "blimp"))]
    assert main([*words, "--precision", "fp32"]) == 0
    text = capsys.readouterr().out
    assert "62 of BLiMP's 67 paradigms are absent, the means are of 5: adjunct_island, " in text
    row = next(line for line in text.splitlines() if line.startswith("subject_verb_agreement"))
    assert row.split()[3:] == ["60.3", "80.1", "86.4"]
    assert (
        "published: n-gram, LSTM and GPT-2: the authors of BLiMP (Warstadt et al. 2020), causal models of other" in text
    )
    assert main([*words, "--precision", "fp32", "--json"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    mean = next(line for line in text.splitlines() if line.startswith("mean of the paradigms"))
    assert mean.split()[4:6] == ["5", f"{100 * result['accuracy']:.2f}"]


def test_a_stopped_evaluation_continues(random_lm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, out, scored = write_blimp(tmp_path / "blimp"), tmp_path / "out", []
    whole = measure_minimal_pairs(random_lm, str(folder))
    plain = evaluate.likelihoods_of

    def failing(*values: Any, **options: Any) -> Any:
        if len(scored) == 3:
            raise KeyboardInterrupt
        scored.append(len(values[1]))
        return plain(*values, **options)

    monkeypatch.setattr(evaluate, "likelihoods_of", failing)
    with pytest.raises(KeyboardInterrupt):
        measure_minimal_pairs(random_lm, folder, out=out)
    assert len([*(out / "scores").iterdir()]) == 3
    assert (out / "lock").read_text() == ""  # no process holds it
    assert not (out / "metrics.json").exists()
    scored.clear()
    assert measure_minimal_pairs(random_lm, folder, out=out) == whole
    assert scored == [8, 8]
    scored += [0]
    assert measure_minimal_pairs(random_lm, folder, out=out) == whole  # nothing is scored a second time
    assert json.loads((out / "metrics.json").read_text()) == whole.as_json()


@pytest.mark.slow
def test_a_folder_that_another_process_writes_is_refused(random_lm: str, tmp_path: Path) -> None:
    folder, out = write_blimp(tmp_path / "blimp"), tmp_path / "out"
    measure_minimal_pairs(random_lm, folder, out=out)
    with KeptScores(out, json.loads((out / "evaluation.json").read_text())).locked():
        command = f"evaluate blimp --model {random_lm} --data {folder} --out {out} --precision fp32"
        words = [sys.executable, "-m", "bertwright", *command.split()]
        held = subprocess.run(words, capture_output=True, text=True, check=False)
    assert held.returncode == 2
    assert "out: another process is writing to this folder" in held.stderr


def test_a_folder_of_other_scores_is_refused(random_lm: str, tmp_path: Path, own_tokenizer: Path) -> None:
    folder, out = write_blimp(tmp_path / "blimp"), tmp_path / "out"
    measure_minimal_pairs(random_lm, folder, out=out)
    with pytest.raises(
        InputError, match=r"--out .*out: its scores were computed with masking within-word, now it is piece"
    ):
        measure_minimal_pairs(random_lm, folder, settings=ScoreSettings(masking="piece"), out=out)
    other = write_encoder(tmp_path / "other", own_tokenizer, initializer_range=0.1, layers=1)
    with pytest.raises(InputError, match="its scores were computed with weights "):
        measure_minimal_pairs(other, folder, out=out)
    kept = out / "scores" / "transitive.json"
    stored = json.loads(kept.read_text())
    for damaged in ([[1.0, 2.0]], [[1.0], [2.0, 3.0]], "none", [[1.0, None]] * 4):
        kept.write_text(json.dumps({**stored, "scores": damaged}))
        with pytest.raises(InputError, match=r"transitive.json: expected two scores for each of 4 pairs; remove"):
            measure_minimal_pairs(random_lm, folder, out=out)
    kept.write_text(json.dumps(stored))
    write_lines(folder / "transitive.jsonl", made_up_pairs("transitive", 3))
    with pytest.raises(InputError, match=r"transitive.json: holds the scores of other pairs than those of --data"):
        measure_minimal_pairs(random_lm, folder, out=out)
    (out / "evaluation.json").write_text("{}")
    with pytest.raises(InputError, match=r"its scores were computed with weights None, now it is "):
        measure_minimal_pairs(random_lm, folder, out=out)
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").touch()
    with pytest.raises(InputError, match="used: exists already and is not an empty folder"):
        measure_minimal_pairs(random_lm, folder, out=tmp_path / "used")


def test_metrics_of_more_paradigms_are_not_replaced(random_lm: str, tmp_path: Path) -> None:
    data, out = write_blimp(tmp_path / "blimp"), tmp_path / "out"
    measure_minimal_pairs(random_lm, data, out=out, precision="fp32")
    before = (out / "metrics.json").read_bytes()
    one = sorted(data.iterdir())[0]
    with pytest.raises(
        InputError, match=r"metrics.json: has metrics of paradigms that are not measured now .4 of them, .* lost"
    ):
        measure_minimal_pairs(random_lm, one, out=out, precision="fp32")
    assert (out / "metrics.json").read_bytes() == before


def test_a_sentence_that_is_too_long_is_named_before_anything_is_scored(random_lm: str, tmp_path: Path) -> None:
    folder = write_blimp(tmp_path / "blimp")
    lines = [*made_up_pairs("wh_island", 2), pair_line("wh_island", 7, "Rain.", ". " * 63)]
    write_lines(folder / "wh_island.jsonl", lines)
    with pytest.raises(
        InputError, match=r"wh_island.jsonl:3: sentence_bad: the sentence has 65 tokens; expected at most 64"
    ):
        measure_minimal_pairs(random_lm, folder, out=tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir() if path.name != "lock"] == ["evaluation.json"]


@pytest.mark.parametrize(
    ("task", "options", "words"),
    [
        ("blimp", (), "evaluate blimp: expected --data PATH, a folder with files .jsonl, or one file"),
        (
            "blimp",
            ("--data", "x", "--width", "3"),
            "evaluate blimp: takes --data, --pairs, --masking, --first-token, --direction, --out",
        ),
        ("embed", ("--data", "x", "--out", "y"), "--first-token, --direction and --out are for blimp"),
        (
            "sst2",
            ("--data", "x", "--masking", "piece"),
            "evaluate sst2: --pairs, --masking, --first-token, --direction and --out are",
        ),
    ],
)
def test_options_of_other_tasks_are_refused(
    task: str,
    options: tuple[str, ...],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["evaluate", task, "--model", "small-wiki", *options]) == 2
    assert words in capsys.readouterr().err.replace("\n", " ")
