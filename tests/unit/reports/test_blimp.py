"""BLiMP in a report: each point belongs to its model, curves of equal pairs alone, and nothing is left out unsaid."""

import html
import json
import re
from pathlib import Path

import numpy as np
import pytest

from bertwright.files import file_digest
from bertwright.pretraining.settings import PretrainSettings
from bertwright.reports.blimp import blimp_charts, read_blimp
from bertwright.reports.report import write_report
from bertwright.reports.runs import Run, read_run
from bertwright.scoring.accuracy import accuracy_of, minimal_pair_metrics
from bertwright.scoring.kept_scores import KeptScores
from bertwright.scoring.pairs import read_paradigms
from bertwright.scoring.settings import ScoreSettings
from bertwright.training.run_folder import start_run
from tests.support.blimp import made_up_pairs, write_lines

SETTINGS = ScoreSettings(masking="piece")
AGREEMENT, STRUCTURE = "anaphor_number_agreement", "transitive"


def counted_run(folder: Path, *models: str, words: int = 2_400_000) -> Run:
    """A finished run of 200 steps whose lines have the words seen, with made-up files of weights."""
    settings = PretrainSettings(steps=200).model_dump(mode="json")
    run = start_run(folder, kind="pretrain", settings=settings, data={"corpus": "c0ffee"}, resume=False)
    for step in (100, 200):
        run.log({"step": step, "words": words * step // 200, "mlm": 5.0, "learning_rate": 1e-4})
    run.note(finished=True, result={"steps": 200, "words": words})
    for model in models:
        (folder / model).mkdir(parents=True)
        (folder / model / "model.safetensors").write_text(f"{folder.name} {model}")
    return read_run(folder)


def evaluate(model: Path, out: Path, rights: dict[str, int], *, pairs: int = 4, finished: bool = True) -> None:
    """Write an evaluation of a file of weights; rights: number of right pairs of each paradigm."""
    lines = [line for uid in rights for line in made_up_pairs(uid, pairs)]
    paradigms = read_paradigms(write_lines(out.parent.parent / f"{pairs}-pairs.jsonl", lines))
    weights = file_digest(model / "model.safetensors")
    kept = KeptScores(out, {"weights": weights, "masking": "piece", "precision": "fp32"})
    scores = {uid: np.array([[float(number < right), 0.5] for number in range(pairs)]) for uid, right in rights.items()}
    for paradigm in paradigms:
        kept.write(paradigm, scores[paradigm.uid])
    accuracies = [accuracy_of(paradigm, scores[paradigm.uid]) for paradigm in paradigms]
    if finished:
        kept.write_metrics(minimal_pair_metrics("m", paradigms, accuracies, SETTINGS, "fp32").as_json())


def page_of(path: Path) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", path.read_text("utf-8"))).split())


def test_points_are_those_of_the_weights_that_were_measured(tmp_path: Path) -> None:
    """The names of the folders of evaluations mean nothing."""
    run = counted_run(tmp_path / "r", "words/1M", "words/2M", "snapshots/step-000000050", "model")
    blimp = run.folder / "blimp"
    evaluate(run.folder / "words" / "2M", blimp / "a", {AGREEMENT: 3, STRUCTURE: 4})
    evaluate(run.folder / "words" / "1M", blimp / "b", {AGREEMENT: 1, STRUCTURE: 3})
    evaluate(run.folder / "snapshots" / "step-000000050", blimp / "c", {AGREEMENT: 0, STRUCTURE: 1})
    evaluate(run.folder / "model", blimp / "d", {AGREEMENT: 8, STRUCTURE: 6}, pairs=8)
    mean, phenomena = blimp_charts([read_blimp(run)], ["r"])
    assert [(series.label, series.points) for series in mean.series] == [
        ("8 pairs, masking piece, fp32", [(600_000.0, 12.5), (1_000_000, 50.0), (2_000_000, 87.5)]),
        ("16 pairs, masking piece, fp32", [(2_400_000, 87.5)]),  # other pairs are no further point of that curve
    ]
    assert {series.label: series.points for series in phenomena.series} == {
        "anaphor agreement": [(600_000.0, 0.0), (1_000_000, 25.0), (2_000_000, 75.0)],
        "argument structure": [(600_000.0, 25.0), (1_000_000, 75.0), (2_000_000, 100.0)],
    }
    assert mean.above == phenomena.above == ""
    shown = write_report(run.folder, corpus=None)
    text = page_of(shown)
    assert "final model 2M words 1M words step 50" in text
    assert "million words seen 2.4 2 1 0.6" in text
    assert "pairs 16 8 8 8" in text
    assert "mean of the paradigms 87.5% 87.5% 50.0% 12.5%" in text
    assert "anaphor agreement 100.0% 75.0% 25.0% 0.0%" in text
    assert 'aria-label="BLiMP, mean of the paradigms, over words seen; chance: 50 %"' in shown.read_text("utf-8")


def test_the_final_model_alone_has_a_table_and_no_chart(tmp_path: Path) -> None:
    run = counted_run(tmp_path / "r", "model")
    assert "BLiMP" not in page_of(write_report(run.folder, corpus=None))
    evaluate(run.folder / "model", run.folder / "blimp", {AGREEMENT: 3})  # the folder itself
    assert blimp_charts([read_blimp(run)], ["r"]) == []
    text = page_of(write_report(run.folder, corpus=None))
    assert "BLiMP final model million words seen 2.4 pairs 4 scored by masking piece, fp32" in text
    assert "75.0% BLiMP, mean of the paradigms" in text
    evaluate(run.folder / "model", run.folder / "blimp" / "more", {AGREEMENT: 2}, pairs=8)
    assert read_blimp(run).last_accuracy == "25.0%"  # most pairs


def test_two_runs_have_their_means_in_one_chart(tmp_path: Path) -> None:
    one, other = (counted_run(tmp_path / name, "words/1M", "model") for name in ("one", "other"))
    for run, right in ((one, 2), (other, 3)):
        evaluate(run.folder / "words" / "1M", run.folder / "blimp" / "1M", {AGREEMENT: 1})
        evaluate(run.folder / "model", run.folder / "blimp" / "final", {AGREEMENT: right})
    (chart,) = blimp_charts([read_blimp(one), read_blimp(other)], ["one", "other"])
    assert [(series.label, series.points, series.colour) for series in chart.series] == [
        ("one, 4 pairs, masking piece, fp32", [(1_000_000, 25.0), (2_400_000, 50.0)], 0),
        ("other, 4 pairs, masking piece, fp32", [(1_000_000, 25.0), (2_400_000, 75.0)], 1),
    ]
    text = page_of(write_report(one.folder, other.folder, corpus=None))
    assert "BLiMP of one" in text
    assert "BLiMP of other" in text
    assert "50.0% 75.0% BLiMP, mean of the paradigms" in text
    third = counted_run(tmp_path / "third", "words/1M", "model")
    evaluate(third.folder / "words" / "1M", third.folder / "blimp" / "1M", {AGREEMENT: 1})
    text = page_of(write_report(one.folder, third.folder, corpus=None))
    assert "50.0% 25.0% (1M words) BLiMP, mean of the paradigms" in text
    text = page_of(write_report(one.folder, counted_run(tmp_path / "fourth").folder, corpus=None))
    assert "50.0% – BLiMP, mean of the paradigms" in text


def test_an_evaluation_of_other_weights_or_unfinished_is_named_and_not_drawn(tmp_path: Path) -> None:
    run, other = counted_run(tmp_path / "r", "words/1M", "model"), counted_run(tmp_path / "other", "model")
    evaluate(other.folder / "model", run.folder / "blimp" / "final", {AGREEMENT: 3})
    evaluate(run.folder / "words" / "1M", run.folder / "blimp" / "1M", {AGREEMENT: 3}, finished=False)
    assert [*read_blimp(run).measured] == blimp_charts([read_blimp(run)], ["r"]) == []
    text = page_of(write_report(run.folder, corpus=None))
    assert "blimp/1M is left out: the evaluation has not finished; the same command continues it." in text
    assert "blimp/final is left out: its weights are those of no model in the folder of this run." in text
    assert "mean of the paradigms" not in text


def test_a_run_whose_words_are_unknown_has_a_table(tmp_path: Path) -> None:
    run = counted_run(tmp_path / "r", "snapshots/step-000000050", "model")
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        del line["words"]
    (run.folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    record = json.loads((run.folder / "run.json").read_text())
    del record["result"]["words"]
    (run.folder / "run.json").write_text(json.dumps(record))
    for model in ("snapshots/step-000000050", "model"):
        evaluate(run.folder / model, run.folder / "blimp" / Path(model).name, {AGREEMENT: 3})
    assert blimp_charts([read_blimp(read_run(run.folder))], ["r"]) == []
    assert "final model step 50 million words seen – – pairs 4 4" in page_of(write_report(run.folder, corpus=None))


@pytest.mark.parametrize(
    ("metrics", "problem"),
    [
        ("{}", "no object 'paradigms'"),
        ('{"paradigms": 3}', "no object 'paradigms'"),
        ('{"paradigms": {"transitive": 1}}', "accuracy: Field required"),
        ('{"paradigms": {}, "accuracy": NaN}', "accuracy: Input should be less than or equal to 1"),
    ],
)
def test_broken_metrics_are_named_and_not_drawn(metrics: str, problem: str, tmp_path: Path) -> None:
    run = counted_run(tmp_path / "r", "model")
    evaluate(run.folder / "model", run.folder / "blimp", {STRUCTURE: 3})
    (run.folder / "blimp" / "metrics.json").write_text(metrics)
    text = page_of(write_report(run.folder, corpus=None))
    assert re.search(rf"blimp is left out: .*metrics\.json: expected .*, got {problem}; remove the file", text)


def test_a_model_that_was_kept_twice_is_one_column(tmp_path: Path) -> None:
    """A run that ends at a mark of words keeps the same weights there and as its final model."""
    run = counted_run(tmp_path / "r", "words/1M", "words/2M", "model", "generator", words=2_000_000)
    for name in ("2M-copy", "1.5M"):  # folders of a person
        (run.folder / "words" / name).mkdir()
    (run.folder / "snapshots" / "step-000000050-copy").mkdir(parents=True)
    (run.folder / "model" / "model.safetensors").write_bytes(
        (run.folder / "words" / "2M" / "model.safetensors").read_bytes()
    )
    for name in ("words/1M", "words/2M", "model", "generator"):
        evaluate(run.folder / name, run.folder / "blimp" / Path(name).name, {AGREEMENT: 3})
    text = page_of(write_report(run.folder, corpus=None))
    assert "BLiMP final model, 2M words generator 1M words million words seen 2 2 1 pairs 4 4 4 scored by" in text
