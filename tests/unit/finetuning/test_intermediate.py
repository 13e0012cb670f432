"""Intermediate training: a model fine-tuned for one task begins the next with its encoder and with a new head."""

import json
from pathlib import Path
from typing import Any

import torch

from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.tasks.classification.spec import ClassificationTask, get_task
from tests.support.folders import weights_in

FAST = FinetuneSettings(epochs=2, batch_size=8, learning_rate=1e-3, max_length=16, threads=1)
STILL = FAST.model_copy(update={"epochs": 1, "learning_rate": 1e-12, "first_seed": 5})
"""So small a rate that a model ends as it began; of another seed, so that its new head is another than the first."""


def data(folder: Path, task: ClassificationTask) -> Path:
    """Pairs in GLUE's columns."""
    folder.mkdir()
    for name in ("train", *task.dev):
        cells = [f"the {n} house\tthe house {n}\t{task.labels[n % len(task.labels)]}\n" for n in range(24)]
        (folder / f"{name}.tsv").write_text("\t".join((*task.text, task.label)) + "\n" + "".join(cells))
    return folder


def test_mnli_then_rte(tmp_path: Path, own_tokenizer: Path) -> None:
    mnli, rte = get_task("mnli"), get_task("rte")
    first: dict[str, Any] = {"model": "random:tiny", "tokenizer": own_tokenizer}
    finetune(FAST, mnli, data=data(tmp_path / "MNLI", mnli), out=tmp_path / "first", **first)
    second = {"model": str(tmp_path / "first"), "data": data(tmp_path / "RTE", rte)}
    finetune(STILL, rte, out=tmp_path / "second", **second)
    alone = {**first, "data": tmp_path / "RTE"}
    finetune(STILL, rte, out=tmp_path / "alone", **alone)
    before, after, fresh = (weights_in(tmp_path / run / "model") for run in ("first", "second", "alone"))
    assert before["classifier.weight"].shape == (3, 128)
    assert after["classifier.weight"].shape == (2, 128)
    for name, tensor in after.items():
        if name.startswith("classifier."):  # the head of this seed, whatever the encoder was before
            torch.testing.assert_close(tensor, fresh[name], rtol=0, atol=1e-9)
        else:
            torch.testing.assert_close(tensor, before[name], rtol=0, atol=1e-9)
    learned = [name for name in before if (before[name].shape == fresh[name].shape)]
    assert max(float((before[name] - fresh[name]).abs().max()) for name in learned) > 1e-3  # the first task taught it
    described = json.loads((tmp_path / "second" / "model" / "config.json").read_text())
    assert described["id2label"] == {"0": "entailment", "1": "not_entailment"}
    assert described["bertwright"]["task"]["name"] == "rte"


def test_as_many_labels_of_other_names_get_a_new_head_too(tmp_path: Path, own_tokenizer: Path) -> None:
    """A head of the same shape would fit; but its outputs mean something else."""
    rte, other = get_task("rte"), get_task("rte").model_copy(update={"name": "other", "labels": ("no", "yes")})
    first: dict[str, Any] = {"model": "random:tiny", "tokenizer": own_tokenizer}
    finetune(FAST, rte, data=data(tmp_path / "RTE", rte), out=tmp_path / "first", **first)
    theirs = data(tmp_path / "other", other)
    finetune(STILL, other, model=str(tmp_path / "first"), data=theirs, out=tmp_path / "second")
    finetune(STILL, other, data=theirs, out=tmp_path / "alone", **first)
    before, after, fresh = (weights_in(tmp_path / run / "model") for run in ("first", "second", "alone"))
    head, word = "classifier.weight", "bert.embeddings.word_embeddings.weight"
    torch.testing.assert_close(after[head], fresh[head], rtol=0, atol=1e-9)
    assert float((after[head] - before[head]).abs().max()) > 1e-2
    torch.testing.assert_close(after[word], before[word], rtol=0, atol=1e-9)


def test_every_layer_kept_by_frozen_layers_is_the_first_tasks_to_the_bit(tmp_path: Path, own_tokenizer: Path) -> None:
    mnli, rte = get_task("mnli"), get_task("rte")
    finetune(
        FAST,
        mnli,
        model="random:tiny",
        tokenizer=own_tokenizer,
        data=data(tmp_path / "MNLI", mnli),
        out=tmp_path / "first",
    )
    frozen = FAST.model_copy(update={"frozen_layers": 2})
    finetune(frozen, rte, model=str(tmp_path / "first"), data=data(tmp_path / "RTE", rte), out=tmp_path / "second")
    before, after = weights_in(tmp_path / "first" / "model"), weights_in(tmp_path / "second" / "model")
    kept = [name for name in after if name.startswith(("bert.embeddings.", "bert.encoder."))]
    assert len(kept) > 30
    assert all(torch.equal(before[name], after[name]) for name in kept)
    assert not torch.equal(before["bert.pooler.dense.weight"], after["bert.pooler.dense.weight"])
