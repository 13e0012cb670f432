"""Choosing among continuations: rows of any number of choices, in and out, and every row that cannot be."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from bertwright.errors import InputError, RunFailed
from bertwright.finetuning.batches import steps_of
from bertwright.finetuning.evaluate import evaluate_task, predict_file
from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.model.bert import open_architecture
from bertwright.model.config import EncoderConfig
from bertwright.model.folder import open_model
from bertwright.tasks.classification.model import Classifier
from bertwright.tasks.classification.spec import get_task
from bertwright.tasks.multiple_choice.spec import SWAG, decode_choices, encode_choices, read_choices
from bertwright.tasks.multiple_choice.task import CHOICE, choice_batch
from bertwright.text.wordpiece import Tokenizer, train_wordpiece

ENDINGS = ("asks the ferryman", "eats a stone", "paints the moon", "sells the river")


@pytest.fixture
def endings_tokenizer(tmp_path: Path, own_text: Path) -> Path:
    train_wordpiece([own_text.read_text("utf-8"), *ENDINGS * 3], vocab_size=500).save(tmp_path / "tok")
    return tmp_path / "tok"


def as_csv(path: Path, rows: list[dict[str, Any]]) -> Path:
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def as_lines(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def swag_rows(count: int) -> list[dict[str, Any]]:
    return [
        {
            "video-id": f"v{n}",
            "sent1": f"The miller waits at gate {n}.",
            "sent2": "She",
            **{f"ending{k}": ENDINGS[(k + n) % 4] for k in range(4)},
            "label": -n % 4,  # always the ferryman
        }
        for n in range(count)
    ]


def test_swags_columns_are_read(tmp_path: Path) -> None:
    rows = read_choices(SWAG, as_csv(tmp_path / "train.csv", swag_rows(3)))
    assert rows.contexts[1] == "The miller waits at gate 1."
    assert rows.choices[1] == (
        "She eats a stone",
        "She paints the moon",
        "She sells the river",
        "She asks the ferryman",
    )
    assert rows.targets is not None
    assert rows.targets.tolist() == [0, 3, 2]
    assert rows.first.tolist() == [0, 4, 8, 12]
    assert rows.lines == (2, 3, 4)


def test_rows_may_have_any_number_of_choices(tmp_path: Path) -> None:
    lines = [
        {"context": "A", "choices": ["b", "c"], "label": 1},
        {"context": "", "choices": ["d", "e", "f", "g", "h"], "label": "4"},
    ]
    rows = read_choices(SWAG, as_lines(tmp_path / "a.jsonl", lines))
    assert [len(choices) for choices in rows.choices] == [2, 5]
    table = swag_rows(2)
    table[1]["ending3"] = " "
    table[1]["label"] = 2
    assert [len(choices) for choices in read_choices(SWAG, as_csv(tmp_path / "b.csv", table)).choices] == [4, 3]


def broken_rows(**change: Any) -> list[dict[str, Any]]:
    return [swag_rows(1)[0], {**swag_rows(2)[1], **change}]


LINE = {"context": "A", "choices": ["b", "c"], "label": 0}
BAD: dict[str, tuple[Any, str]] = {
    "an index out of range": (broken_rows(label=4), r"t\.csv:3: expected a number from 0 to 3 in 'label', got 4"),
    "a negative index": (
        broken_rows(label=-1),
        r"t\.csv:3: expected the number of the right choice in 'label', got '-1'",
    ),
    "no index": (broken_rows(label=""), r"t\.csv:3: expected the number of the right choice in 'label', got ''"),
    "one choice": (broken_rows(ending1="", ending2="", ending3=""), r"t\.csv:3: expected at least two choices, got 1"),
    "a hole": (
        broken_rows(ending1=""),
        r"t\.csv:3: expected a choice in 'ending1', got an empty cell before another choice",
    ),
    "no such columns": (
        [{"sent1": "a", "label": 0}],
        r"t\.csv: expected columns ending0, ending1, … for the choices; the columns are: sent1, label",
    ),
    "one choice in a line": ([LINE, {**LINE, "choices": ["b"]}], r"t\.jsonl:2: expected at least two choices, got 1"),
    "no list": ([LINE, {**LINE, "choices": "b"}], r"t\.jsonl:2: expected a list of texts in 'choices', got 'b'"),
    "an empty choice": (
        [LINE, {**LINE, "choices": ["b", ""]}],
        r"t\.jsonl:2: expected a text in 'choices\[1\]', got ''",
    ),
    "a number of many": (
        [LINE, {**LINE, "choices": [*"ab" * 99, 7]}],
        r"t\.jsonl:2: expected a text in 'choices\[198\]', got 7",
    ),
    "a long one": (
        [LINE, {**LINE, "choices": "b" * 10**6}],
        r"t\.jsonl:2: expected a list of texts in 'choices', got",
    ),
    "a long label": (
        [LINE, {**LINE, "label": "b" * 10**6}],
        r"t\.jsonl:2: expected the number of the right choice in 'label', got",
    ),
    "no text": ([LINE, {**LINE, "context": 3}], r"t\.jsonl:2: expected a text in 'context', got 3"),
    "a truth value": (
        [LINE, {**LINE, "label": True}],
        r"t\.jsonl:2: expected the number of the right choice in 'label', got True",
    ),
    "no label": (
        [LINE, {"context": "A", "choices": ["b", "c"]}],
        r"t\.jsonl:2: expected the number of the right choice in 'label', got nothing",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_rows_that_cannot_be_are_named(tmp_path: Path, name: str) -> None:
    rows, words = BAD[name]
    path = as_lines(tmp_path / "t.jsonl", rows) if "jsonl" in words else as_csv(tmp_path / "t.csv", rows)
    with pytest.raises(InputError, match=words):
        read_choices(SWAG, path)


def test_a_softmax_over_each_rows_own_choices() -> None:
    scores = np.array([1.0, 3.0, 2.0, 2.0, 2.0], dtype=np.float32)
    best, probabilities = decode_choices(scores, np.array([0, 2, 5]))
    assert best.tolist() == [1, 0]
    assert probabilities[0] == pytest.approx(np.exp([-2, 0]) / (1 + np.exp(-2)))
    assert probabilities[1] == pytest.approx([1 / 3] * 3)
    with pytest.raises(RunFailed, match="input 1: expected finite numbers from the model"):
        decode_choices(np.array([1.0, 2.0, 1.0, np.nan, 0.0]), np.array([0, 2, 5]))


def test_the_loss_is_that_of_each_row_alone(tmp_path: Path, endings_tokenizer: Path) -> None:
    """A batch of rows with 2 and 4 choices sums what each gives by itself; padding of choices and tokens is nothing."""
    lines = [
        {"context": "The miller waits.", "choices": [*ENDINGS], "label": 2},
        {"context": "", "choices": ["Yes.", "No, and the river never did so before."], "label": 1},
    ]
    rows = read_choices(SWAG, as_lines(tmp_path / "a.jsonl", lines))
    words = Tokenizer.load(endings_tokenizer)
    encoded = encode_choices(words, rows, max_length=64)
    config = EncoderConfig(vocab_size=words.vocab_size, hidden=32, layers=2, heads=4, intermediate=48)
    torch.manual_seed(1)
    model = Classifier(config, 1).double().eval()
    trainable = CHOICE.trainable(SWAG, model)

    def loss(chosen: list[int]) -> float:
        batch = choice_batch(encoded, rows, chosen, pad_id=0)
        assert trainable.counts(batch) == {"rows": len(chosen)}
        return float(trainable.step(batch)["loss"][0].detach())

    each = [loss([0]), loss([1])]
    assert loss([0, 1]) == pytest.approx(sum(each), abs=1e-5)
    assert loss([1, 0]) == pytest.approx(sum(each), abs=1e-5)
    alone = model(choice_batch(encoded, rows, [1], pad_id=0).rows)[:, 0].detach()
    assert each[1] == pytest.approx(float(F.cross_entropy(alone[None].float(), torch.tensor([1]))), abs=1e-6)


def test_many_choices_are_learned_in_parts_with_the_same_gradients(
    tmp_path: Path, endings_tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step of 7 rows of 2 to 9 choices, at once, and in parts of 200 tokens."""
    choices = [f"She sells {number}" for number in range(9)]
    lines = [
        {"context": f"The miller waits at gate {row}.", "choices": choices[: 2 + row % 8], "label": row % 8}
        for row in range(16)
    ]
    words = Tokenizer.load(endings_tokenizer)
    config = EncoderConfig(vocab_size=words.vocab_size, hidden=32, layers=2, heads=4, intermediate=48)
    work = CHOICE.prepare(SWAG, as_lines(tmp_path / "train.jsonl", lines), words, config, 40)
    torch.manual_seed(3)
    model = work.build(config).double().eval()
    trainable = work.trainable(model)

    def learned(most: int) -> tuple[int, list[torch.Tensor]]:
        monkeypatch.setattr("bertwright.finetuning.batches.MICRO_TOKENS", most)
        micro = steps_of(work, 7, seed=0)(0)
        assert all(len(batch.targets) == 1 or int(batch.rows.mask.sum()) <= most for batch in micro)
        assert sum(len(batch.targets) for batch in micro) == 7
        model.zero_grad()
        for batch in micro:
            trainable.step(batch)["loss"][0].backward()
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        return len(micro), [gradient.clone() for gradient in gradients]

    one, whole = learned(10**6)
    several, parts = learned(200)
    assert one == 1 < several < 7 == learned(1)[0]
    for part_gradient, wanted in zip(parts, whole, strict=True):
        torch.testing.assert_close(part_gradient, wanted, rtol=1e-9, atol=1e-12)


def test_it_learns_answers_and_comes_back(
    tmp_path: Path, endings_tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows whose right choice can be learned: all answers are right after a few epochs, also from the folder."""
    data = tmp_path / "data"
    data.mkdir()
    as_csv(data / "own-train.csv", swag_rows(16))
    as_csv(data / "own-val.csv", swag_rows(8))
    settings = FinetuneSettings(epochs=12, batch_size=4, learning_rate=1e-3, max_length=40, threads=1)
    result = finetune(settings, SWAG, model="random:tiny", data=data, out=tmp_path / "run", tokenizer=endings_tokenizer)
    assert result["mean"] == 1.0
    assert evaluate_task(SWAG, model=str(tmp_path / "run"), data=data) == {"accuracy": 1.0, "examples": 8}
    source = as_csv(tmp_path / "in.csv", [{**row, "label": "?"} for row in swag_rows(5)])
    assert predict_file(str(tmp_path / "run"), str(source), str(tmp_path / "out.csv"))["rows"] == 5
    with (tmp_path / "out.csv").open() as stream:
        answered = list(csv.DictReader(stream))
    assert [int(row["predicted_label"]) for row in answered] == [-n % 4 for n in range(5)]
    for row in answered:
        shares = [float(row[f"probability_{k}"]) for k in range(4)]
        assert sum(shares) == pytest.approx(1, abs=1e-5)
        assert int(np.argmax(shares)) == int(row["predicted_label"])
    line = {"context": "The miller waits.", "choices": ["She sells the river", "She asks the ferryman", "She eats"]}
    as_lines(tmp_path / "in.jsonl", [line])
    predict_file(str(tmp_path / "run"), str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl"))
    answer = json.loads((tmp_path / "out.jsonl").read_text())
    assert answer["label"] == 1
    assert "are cut" not in capsys.readouterr().err
    as_lines(tmp_path / "long.jsonl", [{**line, "context": "The miller waits. " * 20}])
    predict_file(str(tmp_path / "run"), str(tmp_path / "long.jsonl"), str(tmp_path / "out.jsonl"))
    assert "long.jsonl: 3 of 3 choices exceed 40 tokens and are cut" in capsys.readouterr().err
    assert len(answer["probabilities"]) == 3
    saved = open_model(str(tmp_path / "run"))
    assert saved.architecture == open_architecture(saved).architecture == "BertForMultipleChoice"


def test_errors_and_baselines_stand_beside_the_accuracy(tmp_path: Path, endings_tokenizer: Path) -> None:
    """A model of one epoch is often wrong; the file, the report's rows and the accuracy tell the same."""
    data, run = tmp_path / "data", tmp_path / "run"
    data.mkdir()
    as_csv(data / "own-train.csv", swag_rows(16))
    as_csv(data / "own-val.csv", swag_rows(11))
    settings = FinetuneSettings(epochs=1, batch_size=8, learning_rate=1e-5, max_length=40, threads=1, precision="fp32")
    result = finetune(settings, SWAG, model="random:tiny", data=data, out=run, tokenizer=endings_tokenizer)
    metrics = evaluate_task(SWAG, model=str(run), data=data, errors=str(tmp_path / "errors.jsonl"))
    rows = [json.loads(line) for line in (tmp_path / "errors.jsonl").read_text().splitlines()]
    num_wrong = sum(row["wrong"] for row in rows)
    assert len(rows) == 11
    assert metrics["accuracy"] == pytest.approx(1 - num_wrong / 11)
    assert [row["wrong"] for row in rows] == [True] * num_wrong + [False] * (11 - num_wrong)
    assert all(row["gold"] == "She asks the ferryman" for row in rows)
    assert all(row["context"] == f"The miller waits at gate {row['line'] - 2}." for row in rows)
    assert all((row["predicted"] == row["gold"]) is not row["wrong"] for row in rows)
    predict_file(str(run), str(data / "own-val.csv"), str(tmp_path / "out.csv"))
    with (tmp_path / "out.csv").open() as stream:
        answered = list(csv.DictReader(stream))
    for row in rows:
        cells = answered[row["line"] - 2]
        assert row["probability"] == pytest.approx(float(cells[f"probability_{cells['predicted_label']}"]), abs=2e-6)
        assert row["gold_probability"] == pytest.approx(float(cells[f"probability_{cells['label']}"]), abs=2e-6)
    record = json.loads((run / "run.json").read_text())
    # Labels go 0, 3, 2, 1, so 0 is the commonest of 16; 3 of 11 rows have it. A word decides, which the bag finds.
    assert record["baselines"]["metrics"] == {
        "commonest answer": {"accuracy": pytest.approx(3 / 11)},
        "bag of words": {"accuracy": 1.0},
    }
    assert "The model is not better than the baseline 'bag of words'. Try more rows" in result["text"]
    assert "- accuracy: 1.0000, of the baseline bag of words\n" in (run / "model/README.md").read_text()
    (review,) = json.loads((run / "seed-0/validation.json").read_text()).values()
    assert [row[0] for row in review["worst"]["rows"]] == [row["line"] for row in rows]
    broken = as_csv(tmp_path / "tab.csv", [{**swag_rows(1)[0], "ending2": "two\nlines"}])
    with pytest.raises(InputError, match=r"a text of .* holds a tab or a line break, which tsv cannot hold"):
        evaluate_task(SWAG, model=str(run), data=broken, errors=str(tmp_path / "errors.tsv"))


def test_without_a_dev_file_a_tenth_is_kept_whatever_the_order(tmp_path: Path) -> None:
    rows = swag_rows(40)
    read = CHOICE.read(SWAG, as_csv(tmp_path / "a.csv", rows))
    train, dev = read.train, read.validation["dev"]
    assert (len(train), len(dev)) == (36, 4)
    turned = CHOICE.read(SWAG, as_csv(tmp_path / "b.csv", rows[::-1])).validation["dev"]
    assert sorted(turned.contexts) == sorted(dev.contexts)
    assert not set(train.contexts) & set(dev.contexts)


def test_two_dev_files_are_refused(tmp_path: Path) -> None:
    for name in ("train.csv", "a-val.csv", "b-val.csv"):
        as_csv(tmp_path / name, swag_rows(8))
    with pytest.raises(
        InputError, match=r"expected one table, found a-val\.csv, b-val\.csv; keep one or give the path of the file"
    ):
        CHOICE.read(SWAG, tmp_path)


def test_another_kind_of_model_is_refused(tmp_path: Path, endings_tokenizer: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    as_csv(data / "train.csv", [{"sentence": f"word {n}", "label": n % 2} for n in range(8)])
    settings = FinetuneSettings(epochs=1, batch_size=4, threads=1)
    finetune(
        settings, get_task("sst2"), model="random:tiny", data=data, out=tmp_path / "run", tokenizer=endings_tokenizer
    )
    card = (tmp_path / "run/model/README.md").read_text()
    assert "- max_length: 128\n" in card.partition("\nChosen for the task")[2]  # the default of the task
    with pytest.raises(InputError, match="run: expected a model for swag, got one for sst2, another kind of task"):
        evaluate_task(SWAG, model=str(tmp_path / "run"), data=data)
