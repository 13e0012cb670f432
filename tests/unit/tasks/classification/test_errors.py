"""Confusion, calibration and the order of errors, compared with plain loops, scikit-learn and scipy."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from sklearn.metrics import confusion_matrix, log_loss

from bertwright.errors import InputError
from bertwright.tables.reader import read_table
from bertwright.tables.writer import PredictRequest
from bertwright.tasks.classification.calibration import calibration_error, decisions, fit_temperature, reliability
from bertwright.tasks.classification.encoding import decode
from bertwright.tasks.classification.errors import assess, confusion_of, errors_of, evaluation_text
from bertwright.tasks.classification.examples import TextExamples
from bertwright.tasks.classification.spec import ClassificationTask, get_task, with_labels
from bertwright.tasks.errors import write_errors

TASK = with_labels(get_task("classify"), ["a", "b", "c"])
MULTILABEL = with_labels(get_task("multilabel"), ["red", "green"])


def noisy_logits(rows: int, *, factor: float = 1.0) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    random = np.random.default_rng(0)
    logits = random.normal(size=(rows, 3)) * 2
    chances = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    targets = np.array([random.choice(3, p=row) for row in chances])
    return (factor * logits).astype(np.float32), targets


def examples(targets: NDArray[np.generic]) -> TextExamples:
    texts = tuple(f"text {number}" for number in range(len(targets)))
    return TextExamples(texts, None, targets, "dev.tsv", tuple(range(2, 2 + len(targets))))


def test_confusion_is_that_of_scikit_learn() -> None:
    logits, targets = noisy_logits(200)
    predictions = decode(TASK, logits)
    confusion = confusion_of(TASK, predictions, targets)
    matrix = [[confusion[gold].get(predicted, 0) for predicted in "abc"] for gold in "abc"]
    assert matrix == confusion_matrix(targets, predictions.values).tolist()
    assert sum(map(sum, matrix)) == 200
    assert all(count for row in confusion.values() for count in row.values())


def test_calibration_error_is_that_of_a_plain_loop() -> None:
    logits, targets = noisy_logits(500, factor=2.0)
    predictions = decode(TASK, logits)
    probabilities, correct = decisions(predictions, targets)
    expected = 0.0
    for number in range(10):
        low, high = number / 10, (number + 1) / 10
        inside = [row for row in range(500) if low <= probabilities[row] < high or (high == 1 == probabilities[row])]
        if inside:
            mean = sum(probabilities[row] for row in inside) / len(inside)
            share = sum(bool(correct[row]) for row in inside) / len(inside)
            expected += len(inside) / 500 * abs(mean - share)
    bins = reliability(probabilities, correct)
    assert calibration_error(bins) == pytest.approx(expected, abs=1e-12)
    assert sum(part["count"] for part in bins) == 500
    assert expected > 0.05  # the logits are twice too large


def test_certain_answers_belong_to_the_last_bin() -> None:
    (part,) = reliability(np.array([1.0, 1.0]), np.array([True, False]))
    assert part == {"from": 0.9, "to": 1.0, "count": 2, "probability": 1.0, "correct": 0.5}


@pytest.mark.parametrize("factor", [0.4, 1.0, 3.0])
def test_the_temperature_is_the_one_that_scipy_finds(factor: float) -> None:
    logits, targets = noisy_logits(2000, factor=factor)

    def loss(temperature: float) -> float:
        scaled = logits.astype(np.float64) / temperature
        chances = np.exp(scaled) / np.exp(scaled).sum(1, keepdims=True)
        return float(log_loss(targets, chances, labels=[0, 1, 2]))

    temperature = fit_temperature(TASK, logits, targets)
    best = minimize_scalar(loss, bounds=(0.05, 20), method="bounded", options={"xatol": 1e-9}).x
    assert temperature == pytest.approx(best, rel=1e-4)
    assert temperature == pytest.approx(factor, rel=0.1)


def test_the_temperature_of_several_labels_is_the_one_that_scipy_finds() -> None:
    random = np.random.default_rng(1)
    true = random.normal(size=(1500, 2)) * 2
    targets = random.random((1500, 2)) < 1 / (1 + np.exp(-true))
    logits = (2.5 * true).astype(np.float32)

    def loss(temperature: float) -> float:
        scaled = logits.astype(np.float64) / temperature
        return float(np.sum(np.logaddexp(0, scaled) - scaled * targets))

    best = minimize_scalar(loss, bounds=(0.05, 20), method="bounded", options={"xatol": 1e-9}).x
    assert fit_temperature(MULTILABEL, logits, targets) == pytest.approx(best, rel=1e-4)


def test_no_temperature_fits_where_all_is_right_or_nothing_is_learned() -> None:
    logits = np.eye(3, dtype=np.float32)
    with pytest.raises(InputError, match="all 3 rows are answered correctly"):
        fit_temperature(TASK, logits, np.array([0, 1, 2]))
    flat = np.array([[0.004, -0.004]] * 10, dtype=np.float32)
    with pytest.raises(InputError, match=r"on these 10 rows no temperature from 0\.01 to 100 is best"):
        fit_temperature(TASK, flat, np.array([0] * 7 + [1] * 3))
    with pytest.raises(InputError, match="not better than guessing"):
        fit_temperature(TASK, logits, np.array([1, 2, 0]))


def test_a_temperature_changes_probabilities_and_no_answer() -> None:
    logits, targets = noisy_logits(300, factor=3.0)
    warm = TASK.model_copy(update={"temperature": 3.0})
    before, after = decode(TASK, logits), decode(warm, logits)
    assert np.array_equal(before.values, after.values)
    exponents = np.exp(logits.astype(np.float64) / 3.0)
    assert after.probabilities == pytest.approx(exponents / exponents.sum(1, keepdims=True))
    assert "temperature" not in TASK.model_dump()
    assert ClassificationTask.model_validate(warm.model_dump()).temperature == 3.0
    assert assess(warm, after, targets)["calibration_error"] < assess(TASK, before, targets)["calibration_error"] / 2


def test_confidently_wrong_rows_come_first_and_doubtful_ones_next() -> None:
    chances = np.array([[0.6, 0.3, 0.1], [0.9, 0.05, 0.05], [0.4, 0.35, 0.25], [0.8, 0.1, 0.1], [0.7, 0.2, 0.1]])
    targets = np.array([0, 0, 1, 2, 1])  # rows 2, 3 and 4 are wrong
    errors = errors_of(TASK, examples(targets), decode(TASK, np.log(chances)))
    rows = [dict(zip(errors.columns, row, strict=True)) for row in errors.rows()]
    assert [row["line"] for row in rows] == [5, 6, 4, 2, 3]
    assert rows[0] == {
        "line": 5,
        "text": "text 3",
        "gold": "c",
        "predicted": "a",
        "wrong": True,
        "probability": 0.8,
        "gold_probability": 0.1,
    }


def test_numbers_are_ordered_by_their_residual() -> None:
    task = get_task("regress")
    targets = np.array([1.0, 2.0, 3.0], dtype=np.float32)
    errors = errors_of(task, examples(targets), decode(task, np.array([1.5, 0.0, 3.0])))
    residual = list(errors.columns).index("residual")
    assert [row[residual] for row in errors.rows()] == [-2.0, 0.5, 0.0]


def test_the_probability_of_several_labels_is_that_of_the_whole_set() -> None:
    logits = np.log(np.array([[0.9, 0.2], [0.6, 0.7]]) / (1 - np.array([[0.9, 0.2], [0.6, 0.7]])))
    targets = np.array([[True, True], [True, True]])
    errors = errors_of(MULTILABEL, examples(targets), decode(MULTILABEL, logits))
    (first, second) = (dict(zip(errors.columns, row, strict=True)) for row in errors.rows())
    assert (first["predicted"], first["gold"], first["wrong"]) == (["red"], ["red", "green"], True)
    assert first["probability"] == pytest.approx(0.9 * 0.8)
    assert first["gold_probability"] == pytest.approx(0.9 * 0.2)
    assert (second["wrong"], second["probability"]) == (False, pytest.approx(0.42))


@pytest.mark.parametrize("ending", ["tsv", "csv.gz", "jsonl", "parquet"])
def test_errors_are_written_in_the_format_of_the_ending(tmp_path: Path, ending: str) -> None:
    logits, targets = noisy_logits(30)
    errors = errors_of(TASK, examples(targets), decode(TASK, logits))
    path = tmp_path / f"errors.{ending}"
    write_errors(PredictRequest("dev.tsv", str(path)), {"dev_matched": errors, "dev_mismatched": errors})
    table = read_table(path)
    assert table.columns == ("file", "line", "text", "gold", "predicted", "wrong", "probability", "gold_probability")
    assert len(table) == 60
    assert table.column("file")[29:31] == ("dev_matched", "dev_mismatched")
    assert [str(cell).lower() for cell in table.column("wrong")[:30]] == sorted(
        [str(score == 0.0).lower() for score in errors.score], reverse=True
    )


def test_many_labels_are_printed_as_their_most_frequent_confusions() -> None:
    labels = [f"label {number}" for number in range(30)]
    confusion = {label: {label: 5} for label in labels}
    confusion["label 3"]["label 7"] = 4
    text = evaluation_text({"accuracy": 0.5, "confusion": confusion})
    assert "       4  label 3 → label 7" in text
    assert "label 8" not in text


def test_few_labels_are_printed_as_a_matrix() -> None:
    text = evaluation_text({"accuracy": 0.5, "confusion": {"no": {"no": 3, "yes": 1}, "yes": {"yes": 4}}})
    assert [line.split() for line in text.splitlines()[-4:-1]] == [["no", "yes"], ["no", "3", "1"], ["yes", "0", "4"]]
    assert text.endswith("\nthe answer 'no' for every row would have the accuracy 0.5000")
