"""A student that learns a task: what it learns, what its folder holds, how it resumes, and what is refused."""

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bertwright as bw
from bertwright.distillation import teacher as teachers
from bertwright.distillation.prepare import TaskRequest
from bertwright.distillation.run import ANSWERS, distill_task
from bertwright.distillation.settings import DistillationSettings
from bertwright.distillation.soft_task import SoftTask
from bertwright.errors import InputError, RunFailed, Stopped
from bertwright.files import read_json
from bertwright.finetuning.evaluate import evaluate_task
from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.model.folder import open_model, save_model
from bertwright.reports.report import with_pages
from bertwright.tasks.classification.spec import ClassificationTask
from bertwright.tasks.spec import get_spec
from bertwright.text.wordpiece import Tokenizer
from tests.support.encoders import classifier_config, save_classifier, small_classifier
from tests.unit.distillation.conftest import reviews_of, write_reviews

SETTINGS = FinetuneSettings(epochs=2, learning_rate=1e-2, batch_size=8, precision="fp32", threads=1)


def distill(teacher: str, out: Path, data: Path, *, texts: Path | None = None, **options: Any) -> dict[str, Any]:
    soft = {"size": "1x16x1", **options.pop("soft", {})}
    settings = SETTINGS.model_copy(update=options.pop("settings", {}))
    request = TaskRequest(data, texts)
    return distill_task(
        settings, DistillationSettings.model_validate(soft), request, teacher=teacher, out=out, **options
    )


def test_a_student_answers_as_the_teacher_more_often_than_one_that_learns_from_labels_alone(
    reviews_folder: Path, teacher: str, tmp_path: Path
) -> None:
    """The two students have the same 6 labels, the same first weights and the same number of steps."""
    few, more = reviews_folder / "few", reviews_folder / "more.txt"
    alone = distill(teacher, tmp_path / "alone", few, soft={"soft_weight": 0.0}, settings={"epochs": 93})
    taught = distill(teacher, tmp_path / "taught", few, texts=more, settings={"epochs": 3})
    steps = [read_json(Path(result["out"]) / "seed-0" / "run.json")["resolved"]["steps"] for result in (alone, taught)]
    assert steps == [93, 93]
    assert taught["distillation"]["agreement"] > alone["distillation"]["agreement"] + 0.1
    assert taught["mean"] > alone["mean"]


def test_the_comparison_is_that_of_evaluate_and_stands_in_the_result_the_text_and_the_card(
    reviews_folder: Path, teacher: str, tmp_path: Path
) -> None:
    data, out = reviews_folder / "data", tmp_path / "student"
    result = distill(teacher, out, data, soft={"size": None, "layers": 2}, settings={"epochs": 1})
    compared = result["distillation"]
    for name, source in (("teacher", teacher), ("student", str(out))):
        evaluated = evaluate_task(get_spec("classify"), model=source, data=data)
        assert compared[name]["metrics"]["accuracy"] == evaluated["accuracy"]
        saved = open_model(source)
        assert saved.weights is not None
        assert compared[name]["parameters"] == sum(tensor.numel() for tensor in saved.weights.values())
        assert compared[name]["bytes"] == (Path(saved.source) / "model.safetensors").stat().st_size
        assert compared[name]["milliseconds"] > 0
    texts = [text for text, _ in reviews_of(80, seed=2)]
    labels = [[answer.label for answer in bw.load(source)(texts)] for source in (teacher, str(out))]
    same = sum(one == other for one, other in zip(*labels, strict=True)) / len(texts)
    assert compared["agreement"] == pytest.approx(same)
    assert compared["share"] == pytest.approx(
        compared["student"]["metrics"]["accuracy"] / compared["teacher"]["metrics"]["accuracy"]
    )
    assert "time of a text" in result["text"]
    with_pages(result, out)
    page = (out / "report.html").read_text("utf-8")
    assert "distillation · layers" in page
    assert "not a setting of this version" not in page
    card = (out / "model" / "README.md").read_text("utf-8")
    digest = read_json(out / "run.json")["data"]["teacher"]
    assert f"learned from the model `teacher`, its weights' sha256 `{digest[:16]}`" in card
    assert f"share of the teacher's accuracy: {compared['share']:.1%}" in card
    assert "distillation.layers: 2" in card
    assert "ms" not in card.split()
    tuned = finetune(SETTINGS, get_spec("classify"), model=str(out), data=data, out=tmp_path / "tuned")
    assert tuned["mean"] > 0.4


def stop_after(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send SIGINT while the batch after `step` batches is made."""
    made = 0
    batch = SoftTask.batch

    def counted(self: SoftTask, chosen: Any) -> Any:
        nonlocal made
        made += 1
        if made == step:
            signal.raise_signal(signal.SIGINT)
        return batch(self, chosen)

    monkeypatch.setattr(SoftTask, "batch", counted)


def test_a_resumed_run_gives_the_same_bytes_and_asks_the_teacher_once(
    reviews_folder: Path, teacher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, soft = reviews_folder / "few", {"relation_weight": 0.5}
    options: Any = {"texts": reviews_folder / "more.txt", "soft": soft, "settings": {"epochs": 1, "seeds": 2}}
    distill(teacher, tmp_path / "whole", data, **options)
    with monkeypatch.context() as patched:
        stop_after(40, patched)  # in the second seed
        with pytest.raises(Stopped, match="1 of 2 seeds done"):
            distill(teacher, tmp_path / "cut", data, **options)

    def never(*_: Any) -> Any:
        raise AssertionError("the teacher was asked again")

    monkeypatch.setattr(teachers, "predict_logits", never)
    distill(teacher, tmp_path / "cut", data, **options, resume=True)
    for name in ("model.safetensors", "README.md", "config.json"):
        assert (tmp_path / "cut/model" / name).read_bytes() == (tmp_path / "whole/model" / name).read_bytes(), name
    again = distill(teacher, tmp_path / "cut", data, **options, resume=True)
    assert again["distillation"] == read_json(tmp_path / "cut" / "run.json")["result"]["distillation"]


def test_another_teacher_and_damaged_answers_are_refused(
    reviews_folder: Path, teacher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, out = reviews_folder / "few", tmp_path / "run"
    stop_after(1, monkeypatch)
    with pytest.raises(Stopped):
        distill(teacher, out, data)
    other = tmp_path / "other"
    saved = open_model(teacher)
    assert saved.weights is not None
    changed = {**saved.weights, "classifier.linear.bias": saved.weights["classifier.linear.bias"] + 1}
    facts: Any = {"labels": saved.labels, "extra": saved.extra, "architecture": saved.architecture}
    save_model(other, changed, config=saved.config, tokenizer=saved.tokenizer, **facts)
    with pytest.raises(InputError, match="was started with a teacher of"):
        distill(str(other), out, data, resume=True)
    kept = (out / ANSWERS).read_bytes()
    (out / ANSWERS).write_bytes(kept[: len(kept) // 2])
    with pytest.raises(InputError, match=f"{ANSWERS}: is damaged; remove it"):
        distill(teacher, out, data, resume=True)
    fresh = tmp_path / "fresh"
    stop_after(1, monkeypatch)
    with pytest.raises(Stopped):
        distill(str(other), fresh, data)
    shutil.copyfile(fresh / ANSWERS, out / ANSWERS)
    with pytest.raises(InputError, match="holds the answers of another teacher or to other texts"):
        distill(teacher, out, data, resume=True)
    (out / ANSWERS).unlink()
    distill(teacher, out, data, resume=True)
    assert (out / ANSWERS).read_bytes() == kept


def test_answers_that_are_not_finite_are_refused(reviews_folder: Path, teacher: str, tmp_path: Path) -> None:
    saved = open_model(teacher)
    assert saved.weights is not None
    broken = {**saved.weights, "classifier.linear.bias": torch.tensor([0.0, float("nan")])}
    facts: Any = {"labels": saved.labels, "extra": saved.extra, "architecture": saved.architecture}
    save_model(tmp_path / "broken", broken, config=saved.config, tokenizer=saved.tokenizer, **facts)
    with pytest.raises(RunFailed, match=r"teacher .*broken, .*train\.tsv:2: expected finite numbers"):
        distill(str(tmp_path / "broken"), tmp_path / "out", reviews_folder / "few")
    assert not (tmp_path / "out" / ANSWERS).exists()


def test_labels_that_the_teacher_does_not_have_are_refused(teacher: str, tmp_path: Path) -> None:
    train = write_reviews(tmp_path / "data" / "train.tsv", [("a film", "pos"), ("a book", "so-so")])
    with pytest.raises(InputError, match=r"train\.tsv:3: unknown label 'so-so'.* answers with the labels neg, pos"):
        distill(teacher, tmp_path / "out", train.parent)
    assert not (tmp_path / "out").exists()


def test_models_that_are_no_teachers_are_refused(
    reviews_folder: Path, teacher: str, own_tokenizer: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="not a fine-tuned model; run: bertwright finetune"):
        distill("small-wiki", tmp_path / "out", reviews_folder / "few")
    tags = {**get_spec("pos").model_dump(mode="json"), "labels": ["x", "y"]}
    saved = open_model(teacher)
    assert saved.weights is not None
    facts: Any = {"labels": ("x", "y"), "architecture": "BertForTokenClassification"}
    facts["extra"] = {"task": tags, "max_length": 24}
    save_model(tmp_path / "tagger", saved.weights, config=saved.config, tokenizer=saved.tokenizer, **facts)
    with pytest.raises(InputError, match="was fine-tuned for pos; distill supports tasks of sentences and pairs"):
        distill(str(tmp_path / "tagger"), tmp_path / "out", reviews_folder / "few")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"bilstm": 8}, "--bilstm: distill does not have it"),
        ({"frozen_layers": 1}, "--frozen-layers: distill does not have it"),
        ({"max_length": 600}, "--max-length 600: .* takes at most 512 tokens"),
    ],
)
def test_settings_that_distill_does_not_have_are_refused(
    reviews_folder: Path, teacher: str, tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    settings = FinetuneSettings.model_validate({**SETTINGS.model_dump(exclude_unset=True), **changes})
    with pytest.raises(InputError, match=words):
        distill_task(
            settings,
            DistillationSettings(layers=1),
            TaskRequest(reviews_folder / "few"),
            teacher=teacher,
            out=tmp_path / "out",
        )


def test_texts_without_labels_need_the_teachers_answers(reviews_folder: Path, teacher: str, tmp_path: Path) -> None:
    (tmp_path / "more.txt").write_text("a film\n", "utf-8")
    with pytest.raises(InputError, match=r"--texts .*more\.txt: .* answers, which --soft-weight 0 leaves out"):
        distill(
            teacher, tmp_path / "out", reviews_folder / "few", texts=tmp_path / "more.txt", soft={"soft_weight": 0.0}
        )


@pytest.mark.parametrize(("name", "labels"), [("stsb", ()), ("multilabel", ("a", "b", "c"))])
def test_numbers_of_pairs_and_independent_labels_are_learned(
    name: str, labels: tuple[str, ...], own_tokenizer: Path, tmp_path: Path
) -> None:
    """A teacher of random weights whose numbers are near 40: the student's are in the same units."""
    task = get_spec(name).model_copy(update={"labels": labels})
    assert isinstance(task, ClassificationTask)
    vocab_size = Tokenizer.load(own_tokenizer).vocab_size
    model = small_classifier(classifier_config(vocab_size, heads=1, layers=2, intermediate=64), max(1, len(labels)))
    with torch.no_grad():
        model.classifier.linear.bias += 0.0 if labels else 40.0
    source = save_classifier(tmp_path / "teacher", model, task, own_tokenizer, 24)
    drawn = np.random.default_rng(0)
    inputs = [(f"house {number} by the sea",) * len(task.text) for number in range(24)]
    wanted = targets_of(source, inputs)
    others = [("a|b", "c", "")[number % 3] if labels else f"{42 + drawn.normal():.3f}" for number in range(24)]
    for part, targets in (("train", others), ("dev", wanted)):  # the teacher answers otherwise
        rows = [(*task.text, task.label), *((*texts, target) for texts, target in zip(inputs, targets, strict=True))]
        path = tmp_path / "data" / f"{part}.tsv"
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join("\t".join(row) + "\n" for row in rows))
    result = distill(source, tmp_path / "out", tmp_path / "data", soft={"soft_weight": 1.0}, settings={"epochs": 40})
    lines = [json.loads(line) for line in (tmp_path / "out/seed-0/metrics.jsonl").read_text().splitlines()]
    assert [line["teacher"] for line in lines if "teacher" in line]
    assert not [line for line in lines if "labels" in line]  # they have no weight
    learned, agreement = targets_of(str(tmp_path / "out"), inputs), result["distillation"]["agreement"]
    if labels:
        majority = max(map(wanted.count, wanted)) / len(wanted)
        assert agreement == pytest.approx(np.mean([one == other for one, other in zip(learned, wanted, strict=True)]))
        assert agreement > majority + 0.2
        return
    assert agreement is None
    assert [float(number) for number in learned] == pytest.approx([float(number) for number in wanted], abs=2.0)


def targets_of(model: str, inputs: list[tuple[str, ...]]) -> list[str]:
    """Return the answers of a model as a table has them: labels between bars, or a number."""
    answers = bw.load(model, precision="fp32")([texts if len(texts) > 1 else texts[0] for texts in inputs])
    return ["|".join(answer.labels) if hasattr(answer, "labels") else f"{answer.score:.3f}" for answer in answers]
