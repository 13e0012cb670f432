"""Texts beyond the length: what each way keeps, that windows weigh as one text, and that all stages do the same."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bertwright.cli import main
from bertwright.finetuning.evaluate import evaluate_task, predict_file
from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.model.folder import open_model
from bertwright.tasks.classification.encoding import decode, encode, shortened, windows
from bertwright.tasks.classification.examples import row_weights
from bertwright.tasks.classification.model import padded, predict_logits
from bertwright.tasks.classification.spec import get_task, with_labels, with_options
from bertwright.tasks.classification.task import CLASSIFICATION
from bertwright.text.wordpiece import Tokenizer
from tests.support.encoders import classifier_config, save_classifier, small_classifier
from tests.support.folders import read_jsonl
from tests.support.letters import Letters

FAST = FinetuneSettings(epochs=1, batch_size=8, learning_rate=1e-3, max_length=16, threads=1)


def test_head_and_tail_keep_a_quarter_and_the_rest() -> None:
    text = "abcdefghijklmnopqrstuvwxyz"
    row = encode(Letters(), [text, "abc"], max_length=14, long="head-tail")
    assert "".join(map(chr, row.ids[0][1:-1])) == "abc" + "rstuvwxyz"  # 12 = 3 + 9
    assert "".join(map(chr, row.ids[1][1:-1])) == "abc"
    assert (row.num_truncated, row.begins) == (1, None)
    a, b = shortened(list(range(100)), list(range(6)), 18, middle=True)
    assert (a, b) == ([0, 1, 2, *range(91, 100)], list(range(6)))  # only the longer side gives up its middle
    a, b = shortened(list(range(100)), list(range(50)), 16, middle=True)
    assert (a, b) == ([0, 1, *range(94, 100)], [0, 1, *range(44, 50)])


SIDES = st.integers(0, 60).map(lambda count: list(range(count)))


@settings(max_examples=300, deadline=None)
@given(SIDES, SIDES, st.integers(2, 40))
def test_head_tail_keeps_as_many_as_truncation(a: list[int], b: list[int], room: int) -> None:
    ends, middles = shortened(a, b, room, middle=False), shortened(a, b, room, middle=True)
    assert [len(side) for side in ends] == [len(side) for side in middles]
    for whole, kept in zip((a, b), middles, strict=True):
        head = len(kept) if kept == whole else len(kept) // 4
        assert kept == whole[:head] + whole[len(whole) - (len(kept) - head) :]


@settings(max_examples=300, deadline=None)
@given(SIDES, SIDES, st.integers(2, 40))
def test_windows_hold_everything_and_overlap_by_half(a: list[int], b: list[int], room: int) -> None:
    rows, loses = windows(a, b, room)
    assert all(len(one) + len(two) <= room for one, two in rows)
    firsts, seconds = zip(*rows, strict=True)
    half = room // 2
    if len(a) + len(b) <= room:
        assert rows == [(a, b)]
    elif len(b) <= half:
        assert set(map(tuple, seconds)) == {tuple(b)}
        check_strides(firsts, a, room - len(b))
    else:
        assert set(map(tuple, firsts)) == {tuple(a[:half])}
        check_strides(seconds, b, room - min(len(a), half))
    assert loses == (len(a) > half and len(b) > half and len(a) + len(b) > room)


def check_strides(parts: Any, whole: list[int], width: int) -> None:
    stride = max(1, width // 2)
    assert [part[0] for part in parts] == [stride * number for number in range(len(parts))]
    assert all(len(part) == width for part in parts[:-1])
    assert parts[-1][-1] == whole[-1]
    assert len(parts) == 1 or parts[-2][-1] != whole[-1]  # no window too many
    assert all(part == whole[part[0] : part[0] + len(part)] for part in parts)


def test_rows_of_windows_have_their_example() -> None:
    texts = ["abc", "abcdefghijklmn", "", "abcdefghi"]
    rows = encode(Letters(), texts, max_length=8, long="windows")  # room for 6, stride 3
    assert ["".join(map(chr, row[1:-1])) for row in rows.ids] == [
        "abc", "abcdef", "defghi", "ghijkl", "jklmn", "", "abcdef", "defghi",
    ]  # fmt: skip
    assert rows.begins is not None
    assert rows.begins.tolist() == [0, 1, 5, 6]
    assert rows.num_rows.tolist() == [1, 4, 1, 2]
    assert rows.num_truncated == 0
    pair = encode(Letters(), ["abcdefgh"], ["mnopqrstuv"], max_length=11, long="windows")  # room for 8
    assert ["".join(chr(i) for i in row if i > 2) for row in pair.ids] == [
        "abcdmnop", "abcdopqr", "abcdqrst", "abcdstuv",
    ]  # fmt: skip
    assert pair.first.tolist() == [6] * 4
    assert pair.num_truncated == 1


def test_a_text_weighs_one_whatever_its_windows_and_times_its_label() -> None:
    task = with_labels(get_task("classify"), ["a", "b"])
    rows = encode(Letters(), ["abc", "abcdefghijklmn", "abcdefghi"], max_length=8, long="windows")
    weights = row_weights(task, np.array([0, 1, 0]), rows)
    assert weights is not None
    assert weights.tolist() == pytest.approx([1, 0.25, 0.25, 0.25, 0.25, 0.5, 0.5])
    weighed = task.model_copy(update={"weights": (2.0, 0.5)})
    weights = row_weights(weighed, np.array([0, 1, 0]), rows)
    assert weights is not None
    assert weights.tolist() == pytest.approx([2, 0.125, 0.125, 0.125, 0.125, 1, 1])
    short = encode(Letters(), ["abc", "de"], max_length=8, long="windows")
    assert row_weights(task, np.array([0, 1]), short) is None


@pytest.mark.parametrize("name", ["classify", "regress", "multilabel"])
def test_the_loss_is_the_mean_over_texts_of_the_mean_over_windows(name: str) -> None:
    task = get_task(name)
    task = task if name == "regress" else with_labels(task, ["a", "b", "c"])
    targets = {
        "classify": np.array([0, 2, 1]),
        "regress": np.array([0.5, -1.0, 2.0], dtype=np.float32),
        "multilabel": np.array([[1, 0, 1], [0, 0, 0], [1, 1, 1]], dtype=np.float32),
    }[name]
    rows = encode(Letters(), ["abc", "abcdefghijklmn", "abcdefghi"], max_length=8, long="windows")
    model = small_classifier(classifier_config(), task.num_outputs)
    goals, weights = np.repeat(targets, rows.num_rows, axis=0), row_weights(task, targets, rows)
    of_task = CLASSIFICATION.trainable(task, model)
    batches = [padded(rows, part, pad_id=0, targets=goals, weights=weights) for part in ([0, 2, 6], [1, 3, 4, 5])]
    assert sum(of_task.counts(batch)["rows"] for batch in batches) == pytest.approx(3.0)
    total = sum(of_task.step(batch)["loss"][0].item() for batch in batches)
    alone = [padded(rows, [row], pad_id=0, targets=goals) for row in range(len(rows))]
    losses = [of_task.step(batch)["loss"][0].item() for batch in alone]
    expected = losses[0] + np.mean(losses[1:5]) + np.mean(losses[5:])
    assert total == pytest.approx(expected, rel=1e-5)


def test_logits_are_the_mean_over_the_windows() -> None:
    model = small_classifier(classifier_config(), 3)
    rows = encode(Letters(), ["abc", "abcdefghijklmn", "", "abcdefghi"], max_length=8, long="windows")
    averaged = predict_logits(model, rows)
    with torch.inference_mode():
        each = np.concatenate([model.eval()(padded(rows, [row], pad_id=0)).numpy() for row in range(len(rows))])
    expected = [each[0], each[1:5].mean(0), each[5], each[6:].mean(0)]
    assert averaged == pytest.approx(np.stack(expected), abs=1e-5)
    assert np.abs(each[1] - each[4]).max() > 1e-3  # so that the mean tells something


@pytest.mark.parametrize("long", ["truncate", "head-tail", "windows"])
def test_what_is_learned_is_evaluated_and_predicted_alike(
    tmp_path: Path, own_tokenizer: Path, long: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Texts whose words differ only at their end: cut off at the end, they are all the same."""
    lines = [f"{'one more word and ' * (3 + n % 3)}{('good ' if n % 2 else 'bad ') * 5}" for n in range(24)]
    for name in ("train", "dev"):
        rows = "".join(f"{line}\t{n % 2}\n" for n, line in enumerate(lines))
        (tmp_path / f"{name}.tsv").write_text(f"sentence\tlabel\n{rows}")
    run_options = {
        "--model": "random:tiny",
        "--data": tmp_path,
        "--tokenizer": own_tokenizer,
        "--out": tmp_path / "run",
    }
    options = {"--max-length": 16, "--epochs": 10, "--learning-rate": 1e-3, "--threads": 1, "--batch-size": 8}
    options |= {"--long": long} if long != "truncate" else {}
    assert main(["finetune", "sst2", *(str(part) for pair in {**run_options, **options}.items() for part in pair)]) == 0
    said = capsys.readouterr().err
    assert ("of 24 examples exceed 16 tokens: with their windows" in said) == (long == "windows")
    assert ("24 of 24 examples exceed 16 tokens and are cut; finetune has --max-length and --long" in said) == (
        long != "windows"
    )
    noted = json.loads((tmp_path / "run" / "model" / "config.json").read_text())["bertwright"]["task"]
    assert noted.get("long", "truncate") == long
    figures = evaluate_task(get_task("sst2"), model=str(tmp_path / "run"), data=tmp_path)
    assert f"{tmp_path / 'dev.tsv'}: 24 of 24 examples exceed 16 tokens" in capsys.readouterr().err
    trained = json.loads((tmp_path / "run" / "run.json").read_text())["result"]["seeds"][0]["scores"]
    assert {name: figures[name] for name in (*trained, "examples")} == {**trained, "examples": 24}
    assert figures["negative.examples"] == figures["positive.examples"] == 12
    assert (figures["accuracy"] == 0.5) == (long == "truncate")
    predict_file(str(tmp_path / "run"), str(tmp_path / "dev.tsv"), str(tmp_path / "out.tsv"))
    answers = [line.split("\t") for line in (tmp_path / "out.tsv").read_text().splitlines()[1:]]
    right = np.mean([answer[2] == ("positive" if answer[1] == "1" else "negative") for answer in answers])
    assert right == pytest.approx(figures["accuracy"])


def test_a_run_takes_as_many_steps_as_its_windows(tmp_path: Path, own_tokenizer: Path) -> None:
    rows = "".join(f"{'word ' * 40}\t{n % 2}\n" for n in range(8))
    (tmp_path / "train.tsv").write_text(f"sentence\tlabel\n{rows}")
    (tmp_path / "dev.tsv").write_text(f"sentence\tlabel\n{rows}")
    words = Tokenizer.load(own_tokenizer)
    num_pieces = len(words.ids(["word " * 40])[0])
    task = with_options(get_task("sst2"), long="windows")
    work = CLASSIFICATION.prepare(task, tmp_path, words, classifier_config(words.vocab_size), 16)
    each = 1 + -(-(num_pieces - 14) // 7)
    assert len(work.lengths) == 8 * each
    batch = work.batch(np.arange(8 * each))
    assert batch.weights.tolist() == pytest.approx([1 / each] * 8 * each)
    assert batch.targets.tolist() == [label for label in (0, 1) * 4 for _ in range(each)]
    finetune(FAST, task, model="random:tiny", data=tmp_path, out=tmp_path / "run", tokenizer=own_tokenizer)
    resolved = json.loads((tmp_path / "run" / "seed-0" / "run.json").read_text())["resolved"]
    assert resolved["steps"] == each


def test_texts_of_a_megabyte_take_time_in_proportion(tmp_path: Path, own_tokenizer: Path) -> None:
    words = Tokenizer.load(own_tokenizer)
    megabyte = "the small house by the river was built of wood and stone " * 18_000
    assert len(megabyte) > 1_000_000
    ids = words.ids([megabyte])[0]

    class Known:
        row_frame = words.row_frame

        def ids(self, texts: Any) -> list[list[int]]:
            return [ids[: len(ids) // int(text)] for text in texts]

    for long in ("truncate", "head-tail", "windows"):
        seconds = []
        for part in ("8", "1"):
            begin = time.process_time()
            rows = encode(Known(), [part], ["1"], max_length=128, long=long)  # type: ignore[arg-type]
            seconds.append(time.process_time() - begin)
        assert sum(len(row) for row in rows.ids) < 4.2 * len(ids)  # of a pair, half of each row is the first text
        assert seconds[1] < 0.2 + 24 * seconds[0]  # eight times the tokens; squared, it would be 64 times
    task = with_labels(with_options(get_task("classify"), long="windows"), ["a", "b"])
    model = small_classifier(classifier_config(words.vocab_size), 2)
    save_classifier(tmp_path / "m", model, task, own_tokenizer, 128)
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in ("short", megabyte)))
    predict_file(str(tmp_path / "m"), str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl"))
    answers = read_jsonl(tmp_path / "out.jsonl")
    logits = predict_logits(model.eval(), encode(words, [megabyte], max_length=128, long="windows"))
    probabilities = decode(task, logits).probabilities
    assert probabilities is not None
    assert list(answers[1]["probabilities"].values()) == pytest.approx(probabilities[0].tolist(), abs=2e-6)
    assert open_model(str(tmp_path / "m")).extra["task"]["long"] == "windows"
