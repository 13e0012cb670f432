"""Baselines beside the result of a run: computed once, kept, printed, and compared with the model."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr

from bertwright import load
from bertwright.cli import main
from bertwright.finetuning import run_baselines
from bertwright.finetuning.baselines import text_baselines, word_baseline
from bertwright.finetuning.run_baselines import COSINE, baseline_lines
from bertwright.tasks.classification.examples import TextExamples
from bertwright.tasks.classification.spec import get_task, with_labels
from bertwright.tasks.tagging.conll import Sentences
from bertwright.tasks.tagging.spec import NER

OPTIONS = "--model random:tiny --threads 1 --epochs 1 --batch-size 8 --max-length 16 --precision fp32"


def examples(texts: list[str], targets: Any, others: list[str] | None = None) -> TextExamples:
    second = None if others is None else tuple(others)
    return TextExamples(tuple(texts), second, np.array(targets), "made up", tuple(range(len(texts))))


def result(values: dict[str, float], mean: float, metric: str = "accuracy") -> dict[str, Any]:
    metrics = {name: {"accuracy": value} for name, value in values.items()}
    return {"metric": metric, "mean": mean, "baselines": {"metrics": metrics, "notes": ["a note"]}}


def test_a_model_that_is_not_better_is_told_so() -> None:
    values = {"commonest answer": 0.5, "bag of words": 0.8}
    first, second = baseline_lines(result(values, 0.8, "dev_matched.accuracy"))
    assert first == "baselines: commonest answer 0.5000, bag of words 0.8000; a note"
    assert second.startswith("The model is not better than the baseline 'bag of words'. Try more rows")
    assert len(baseline_lines(result(values, 0.81))) == 1
    assert "(bertwright finetune embed)" in baseline_lines(result({COSINE: 0.9}, 0.5))[1]
    assert "bertwright.load(MODEL).vectors" in baseline_lines(result({COSINE: 0.9}, 0.5))[1]
    assert baseline_lines({"metric": "f1", "mean": 50.0}) == []


def test_a_word_that_decides_is_found_from_a_sample_of_large_data() -> None:
    random = np.random.default_rng(0)
    targets = random.integers(0, 3, 12_000)
    texts = [f"{'ab'[random.integers(2)]} {('red', 'green', 'blue')[label]}" for label in targets]
    task = with_labels(get_task("classify"), ["x", "y", "z"])
    validation = examples(texts[:500], targets[:500])
    baselines = text_baselines(task, examples(texts, targets), validation)
    assert baselines.metrics["bag of words"]["accuracy"] == 1.0
    commonest = np.bincount(targets).argmax()
    assert baselines.metrics["commonest answer"]["accuracy"] == np.mean(targets[:500] == commonest)
    assert baselines.notes == ("the bag of words learned from a sample of 10,000 of 12,000 rows",)


def test_several_labels_numbers_and_texts_without_words_have_baselines() -> None:
    sets = [[True, False], [True, True], [True, False], [False, False]] * 10
    texts = ["red", "red green", "red", "none"] * 10
    task = with_labels(get_task("multilabel"), ["r", "g"])
    several = text_baselines(task, examples(texts, sets), examples(texts, sets))
    assert several.metrics["bag of words"]["exact_match"] == 1.0
    assert several.metrics["commonest answer"]["exact_match"] == 0.5
    numbers = np.array([1.0, 5.0, 1.0, 9.0] * 10, dtype=np.float32)
    regression = text_baselines(get_task("regress"), examples(texts, numbers), examples(texts, numbers))
    assert regression.metrics["mean number"]["spearman"] == 0.0
    assert regression.metrics["bag of words"]["spearman"] > 0.9
    blank = examples(["  ", ""], [0, 1])
    silent = text_baselines(with_labels(get_task("classify"), ["x", "y"]), blank, blank)
    assert silent.metrics["bag of words"]["accuracy"] == 0.5


def test_without_scikit_learn_a_note_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.linear_model", None)
    rows = examples(["a", "b"] * 5, [0, 1] * 5)
    baselines = text_baselines(get_task("sst2"), rows, rows)
    assert list(baselines.metrics) == ["commonest answer"]
    assert baselines.notes == ("the bag-of-words baseline needs the extra 'tasks': pip install 'bertwright[tasks]'",)


def test_the_commonest_tag_of_each_word_is_taken_from_train() -> None:
    task = NER.model_copy(update={"labels": ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")})
    tags = (("B-LOC", "O"), ("B-PER", "O"), ("B-LOC", "O"))
    train = Sentences("train", (("Oslo", "is"), ("Oslo", "is"), ("Oslo", "x")), tags, ())
    dev = Sentences("dev", (("Oslo", "Ada"),), (("B-LOC", "B-PER"),), ())
    (metrics,) = word_baseline(task, train, dev).metrics.values()
    assert metrics == {"f1": pytest.approx(2 / 3), "precision": 1.0, "recall": 0.5, "accuracy": 0.5}


def test_a_run_computes_its_baselines_once_and_keeps_them(
    tmp_path: Path, own_tokenizer: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"the {'large' if row % 2 else 'small'} house {row}\t{'ab'[row % 2]}" for row in range(32)]
    (tmp_path / "train.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
    (tmp_path / "dev.tsv").write_text("\n".join(["text\tlabel", *rows[:8]]) + "\n")
    calls: list[int] = []
    computed = run_baselines.text_baselines
    monkeypatch.setattr(run_baselines, "text_baselines", lambda *rows: calls.append(1) or computed(*rows))
    out = tmp_path / "run"
    command = f"finetune classify --data {tmp_path} --out {out} --tokenizer {own_tokenizer} {OPTIONS} --seeds 2"
    assert main(command.split()) == 0
    printed = capsys.readouterr()
    assert calls == [1]
    assert "baselines: commonest answer accuracy 0.5000, bag of words accuracy 1.0000" in printed.err
    assert "baselines: commonest answer 0.5000, bag of words 1.0000" in printed.out
    record = json.loads((out / "run.json").read_text())
    assert record["baselines"]["metrics"]["bag of words"]["accuracy"] == 1.0
    assert record["result"]["baselines"] == record["baselines"]
    card = (out / "model/README.md").read_text()
    assert "- accuracy: 1.0000, of the baseline bag of words\n" in card
    # The card tells what was typed from what was chosen.
    typed = "- epochs: 1\n- batch_size: 8\n- max_length: 16\n- seeds: 2\n- precision: fp32\n- threads: 1\n"
    chosen = "\nChosen for the task, the number of rows and the model:\n\n- learning_rate: 0.0005\n- warmup: 0.1\n\n"
    assert f"\nWhere they differ from the defaults:\n\n{typed}{chosen}## Numbers\n" in card
    # A run that was stopped before its end goes on with the baselines of its record.
    unfinished = {name: value for name, value in record.items() if name not in ("finished", "result")}
    (out / "run.json").write_text(json.dumps(unfinished))
    run_baselines._computed.clear()
    assert main([*command.split(), "--resume"]) == 0
    assert calls == [1]
    assert "baselines: commonest answer 0.5000, bag of words 1.0000" in capsys.readouterr().out
    assert (out / "model/README.md").read_text() == card


def test_pairs_with_numbers_have_the_cosine_of_the_frozen_model(
    tmp_path: Path, own_tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "the house river stone wood garden small large old new".split()
    random = np.random.default_rng(0)
    rows = []
    for number in range(40):
        first = list(random.choice(words, 5))
        second = first[: number % 6] + list(random.choice(words, 5 - number % 6)) if number % 6 < 5 else first
        rows.append(f"{' '.join(first)}\t{' '.join(second)}\t{number % 6}")
    for name in ("train", "dev"):
        (tmp_path / f"{name}.tsv").write_text("\n".join(["sentence1\tsentence2\tscore", *rows]) + "\n")
    options = OPTIONS.replace("random:tiny", "small-wiki")
    assert main(f"finetune stsb --data {tmp_path} --out {tmp_path / 'run'} {options}".split()) == 0
    assert "cosine of the frozen model spearman 0." in capsys.readouterr().err
    metrics = json.loads((tmp_path / "run/run.json").read_text())["baselines"]["metrics"]
    model = load("small-wiki", precision="fp32")
    a, b = (model.vectors([row.split("\t")[side] for row in rows], pool="mean") for side in (0, 1))
    cosines = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    expected = spearmanr(np.round(cosines, 6), [number % 6 for number in range(40)]).statistic
    assert metrics[COSINE]["spearman"] == pytest.approx(expected, abs=1e-3)
    assert expected > 0.5
