"""The fast computations equal the plain ones: losses, gradients, and fifty steps of the loop."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.utils import counters

from bertwright.finetuning.batches import epoch_batches
from bertwright.model.bert import Bert
from bertwright.model.encoder import init_weights
from bertwright.objectives.dataset import Examples, PretrainingBatch
from bertwright.objectives.masked_lm import Inputs, PretrainingModel, to_inputs
from bertwright.tasks.classification.encoding import Encoded
from bertwright.tasks.classification.model import Classifier, padded, predict_logits
from bertwright.tasks.classification.spec import ClassificationTask
from bertwright.tasks.classification.task import CLASSIFICATION
from bertwright.tasks.multiple_choice.spec import SWAG, Choices
from bertwright.tasks.multiple_choice.task import CHOICE, choice_batch
from tests.support import tiny_run

CLOSE = 1e-12
"""Largest difference of float64 numbers of size 1 that went through the same sums in another order."""


def gradients_of(module: nn.Module) -> dict[str, Tensor]:
    gradients_by_name = {name: parameter.grad for name, parameter in module.named_parameters()}
    assert all(grad is not None for grad in gradients_by_name.values())
    return {name: grad for name, grad in gradients_by_name.items() if grad is not None}


def assert_close(mine: dict[str, Tensor], other: dict[str, Tensor], tolerance: float) -> None:
    """Differences of each tensor, by the size of the largest gradient of all."""
    assert mine.keys() == other.keys()
    size = max(float(tensor.abs().max()) for tensor in other.values())
    for name, tensor in other.items():
        assert float((mine[name].double() - tensor).abs().max()) <= tolerance * size, name


def moved(model: nn.Module) -> nn.Module:
    """Biases and LayerNorms away from the 0 and 1 that would hide a mistake."""
    generator = torch.Generator().manual_seed(8)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.1)
    return model


# ---------------------------------------------------------------- the classifier at [CLS] alone

SPECS = {
    "classification": ClassificationTask(name="t", text=("a", "b"), labels=("x", "y", "z")),
    "regression": ClassificationTask(name="t", text=("a", "b"), kind="regression", metrics=("pearson",)),
}


def ragged_rows(num_rows: int) -> Encoded:
    """Ragged rows of 3 to 30 tokens, in no order of length, their B sometimes absent."""
    draw = np.random.default_rng(5)
    lengths = draw.integers(3, 31, num_rows)
    ids = tuple(draw.integers(5, tiny_run.VOCAB, length).astype(np.int32) for length in lengths)
    first = np.where(draw.random(num_rows) < 0.3, lengths, lengths // 2 + 1).astype(np.int32)
    return Encoded(ids, first, cut=np.zeros(len(ids), dtype=np.bool_))


@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
def test_the_classifier_is_the_plain_bert(kind: str, activation: str) -> None:
    """Logits, and the gradients of batches bucketed by length, against one batch with everything computed."""
    config = tiny_run.config(activation=activation, layers=3)
    task = SPECS[kind]
    fast = Classifier(config, task.num_outputs).double()
    init_weights(fast, 0.1, torch.Generator().manual_seed(0))
    moved(fast)
    plain = Bert(config, "BertForSequenceClassification", num_labels=task.num_outputs).double()
    plain.load_state_dict(fast.state_dict())
    rows = ragged_rows(45)
    draw = np.random.default_rng(6)
    targets = draw.normal(size=45) if kind == "regression" else draw.integers(0, 3, 45)
    whole = padded(rows, np.arange(45), pad_id=0, targets=targets)
    assert whole.targets is not None
    for row, (ids, first) in enumerate(zip(rows.ids, rows.first.tolist(), strict=True)):  # 0 to A's [SEP], 1 to B's
        padding = [0] * (30 - len(ids))
        assert whole.ids[row].tolist() == [*ids.tolist(), *padding]
        assert whole.segments[row].tolist() == [0] * first + [1] * (len(ids) - first) + padding
        assert whole.mask[row].tolist() == [True] * len(ids) + [False] * len(padding)
    answer = plain(whole.ids, whole.segments, whole.mask)["logits"]
    for row in range(45):  # and padding changes nothing
        alone = padded(rows, [row], pad_id=0)
        torch.testing.assert_close(fast(alone), answer[row : row + 1], atol=CLOSE, rtol=0)
    torch.testing.assert_close(fast(whole), answer, atol=CLOSE, rtol=0)
    np.testing.assert_allclose(predict_logits(fast, rows), answer.detach(), rtol=1e-6, atol=1e-7)  # float32 comes out
    loss = F.mse_loss(answer[:, 0], whole.targets) if kind == "regression" else F.cross_entropy(answer, whole.targets)
    loss.backward()
    total = 0.0
    batches = epoch_batches(np.array([len(ids) for ids in rows.ids]), 7, seed=0, epoch=0)
    assert len(batches) == 7
    for batch in batches:
        ((part, _),) = (
            CLASSIFICATION.trainable(task, fast).step(padded(rows, batch, pad_id=0, targets=targets)).values()
        )
        (part / 45).backward()
        total += float(part.detach()) / 45
    assert total == pytest.approx(float(loss.detach()), abs=CLOSE)
    assert_close(gradients_of(fast), gradients_of(plain), CLOSE)


def test_the_chooser_is_the_plain_bert() -> None:
    """Rows of two to four choices in one batch, against one row at a time with everything computed."""
    config = tiny_run.config(layers=3)
    fast, plain = Classifier(config, 1).double(), Bert(config, "BertForMultipleChoice").double()
    init_weights(fast, 0.1, torch.Generator().manual_seed(0))
    moved(fast)
    plain.load_state_dict(fast.state_dict())
    counts = (4, 2, 3, 4, 3)
    targets = np.array([3, 0, 2, 1, 0])
    rows = ragged_rows(sum(counts))
    choices = Choices(("",) * 5, tuple(("",) * count for count in counts), targets, "", tuple(range(5)))
    order = [2, 0, 4, 1, 3]
    ((loss, _),) = CHOICE.trainable(SWAG, fast).step(choice_batch(rows, choices, order, pad_id=0)).values()
    expected = torch.zeros((), dtype=torch.float64)
    for row, first in enumerate(np.cumsum([0, *counts[:-1]]).tolist()):
        one = padded(rows, range(first, first + counts[row]), pad_id=0)
        logits = plain(one.ids[None], one.segments[None], one.mask[None])["logits"]
        expected = expected + F.cross_entropy(logits, torch.from_numpy(targets[row : row + 1]))
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), abs=CLOSE)
    loss.backward()
    expected.backward()
    assert_close(gradients_of(fast), gradients_of(plain), CLOSE)


# ---------------------------------------------------------------- masked places alone


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Examples:
    return tiny_run.examples(tmp_path_factory.mktemp("corpus"))


def plain_losses(model: Bert, inputs: Inputs, batch: PretrainingBatch) -> dict[str, Tensor]:
    """Losses of every position through the whole model and the vocabulary, with labels at the masked positions."""
    labels = torch.full(batch.ids.shape, -100)
    row, column = np.nonzero(batch.weights)
    labels[row, batch.positions[row, column]] = torch.from_numpy(batch.labels[row, column]).long()
    out = model(inputs.ids, inputs.segments, inputs.mask)
    losses = {"mlm": F.cross_entropy(out.get("prediction_logits", out.get("logits")).flatten(0, 1), labels.flatten())}
    if "seq_relationship_logits" in out:
        losses["pair"] = F.cross_entropy(out["seq_relationship_logits"], inputs.is_random)
    return losses


def fast_losses(model: PretrainingModel, inputs: Inputs) -> dict[str, Tensor]:
    counts = {"predictions": len(inputs.labels), "rows": len(inputs.ids)}
    terms = model.losses(inputs)
    return {"mlm" if name == "mlm" else "pair": total / counts[of] for name, (total, of) in terms.items()}


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
@pytest.mark.parametrize("second_sentence", ["next", "order", "none"])
@pytest.mark.parametrize(("kind", "tolerance"), [(torch.float64, CLOSE), (torch.float32, 5e-6)])
def test_masked_positions_alone_give_the_losses_and_gradients_of_the_whole(
    tmp_path: Path, second_sentence: str, activation: str, kind: torch.dtype, tolerance: float
) -> None:
    """In float32 the projection that overwrites its logits is in use; the plain path is in float64 both times."""
    batch = tiny_run.examples(tmp_path, second_sentence=second_sentence).step_batch(0, 16)
    assert len(set(batch.lengths.tolist())) > 1
    assert len(set(batch.weights.sum(1).tolist())) > 1  # ragged predictions
    fast = tiny_run.built(second_sentence, kind, activation=activation, layers=3)
    moved(fast)
    architecture = "BertForMaskedLM" if second_sentence == "none" else "BertForPreTraining"
    plain = Bert(fast.encoder.config, architecture).double()
    plain.load_state_dict(
        {name: tensor for name, tensor in fast.state_dict().items() if name in plain.state_dict()}, strict=True
    )
    inputs = to_inputs(batch)
    losses = fast_losses(fast, inputs)
    expected = plain_losses(plain, inputs, batch)
    assert losses.keys() == expected.keys()
    for name, loss in losses.items():
        assert loss.dtype == kind
        assert float(loss.detach()) == pytest.approx(float(expected[name].detach()), rel=tolerance), name
    sum(losses.values(), torch.zeros(())).backward()
    sum(expected.values(), torch.zeros(())).backward()
    mine = {name: p.grad for name, p in fast.named_parameters() if p.grad is not None}
    assert_close(mine, gradients_of(plain), tolerance)


def odd_batch(rows: int, length: int, masked: int, vocab_size: int) -> PretrainingBatch:
    """Random rows, the first of full length, with `masked` positions in each, fewer in short rows."""
    random = np.random.default_rng(rows * length + masked)
    lengths = np.concatenate([[length], random.integers(1, length + 1, rows - 1)]).astype(np.int32)
    shape = (rows, masked)
    positions, weights = np.zeros(shape, np.int64), np.zeros(shape, np.float32)
    for row, long in enumerate(lengths):
        number = min(masked, long - 1)
        positions[row, :number] = 1 + random.permutation(long - 1)[:number]
        weights[row, :number] = 1.0
    inside = np.arange(length) < lengths[:, None]
    return PretrainingBatch(
        ids=(random.integers(1, vocab_size, (rows, length)) * inside).astype(np.int32),
        segments=((np.arange(length) > length // 2) * inside).astype(np.int32),
        lengths=lengths,
        positions=positions,
        labels=random.integers(1, vocab_size, shape).astype(np.int32),
        weights=weights,
        is_random=random.integers(0, 2, rows).astype(np.int64),
    )


@pytest.mark.parametrize(
    ("rows", "length", "masked"), [(1, 1, 1), (1, 2, 1), (1, 512, 77), (3, 9, 0), (5, 7, 3), (7, 33, 5), (2, 511, 1)]
)
@pytest.mark.parametrize(("kind", "tolerance"), [(torch.float64, CLOSE), (torch.float32, 5e-5)])
def test_odd_shapes_give_the_losses_and_gradients_of_the_whole(
    rows: int, length: int, masked: int, kind: torch.dtype, tolerance: float
) -> None:
    """A vocabulary that is no multiple of 8, one row, one token, nothing that is masked."""
    batch = odd_batch(rows, length, masked, vocab_size=203)
    fast = tiny_run.built("next", kind, vocab_size=203, max_positions=512)
    moved(fast)
    plain = Bert(fast.encoder.config, "BertForPreTraining").double()
    plain.load_state_dict(fast.state_dict())
    inputs = to_inputs(batch)
    terms = fast.losses(inputs)
    counts = {"predictions": len(inputs.labels) or 1, "rows": rows}
    losses = {name: total / counts[of] for name, (total, of) in terms.items()}
    expected = plain_losses(plain, inputs, batch)
    if not len(inputs.labels):
        assert float(losses["mlm"].detach()) == 0.0
        expected["mlm"] = expected["mlm"].new_zeros(())
    for mine, theirs in (("mlm", "mlm"), ("nsp", "pair")):
        wanted = float(expected[theirs].detach())
        assert float(losses[mine].detach()) == pytest.approx(wanted, rel=tolerance, abs=tolerance)
    sum(losses.values(), torch.zeros(())).backward()
    sum(expected.values(), torch.zeros(())).backward()
    for (name, mine), theirs in zip(fast.named_parameters(), plain.parameters(), strict=True):
        pair = [torch.zeros_like(one) if one.grad is None else one.grad for one in (mine, theirs)]  # nothing was masked
        torch.testing.assert_close(pair[0].double(), pair[1].double(), atol=tolerance, rtol=tolerance, msg=name)


# ---------------------------------------------------------------- fifty steps

Log = list[dict[str, float]]
CUT = {"rows of 3, 3 and 2": 3, "rows one by one": 1}


def wider(batch: PretrainingBatch, by: int) -> PretrainingBatch:
    """More padding: of tokens, and of predictions."""
    padding = {
        name: np.pad(getattr(batch, name), ((0, 0), (0, by)))
        for name in ("ids", "segments", "positions", "labels", "weights")
    }
    return dataclasses.replace(batch, **padding)


def fifty_steps(folder: Path, rows: Examples, way: str, kind: torch.dtype, layers: int) -> tuple[PretrainingModel, Log]:
    """A model trained one way: its rows all at once, cut, padded further, or the step compiled."""
    model = tiny_run.built(kind=kind, layers=layers)
    batches = tiny_run.micro_batches(rows, CUT.get(way, tiny_run.ROWS))
    if way == "padded further":

        def batches(step: int) -> list[Inputs]:
            return [to_inputs(wider(rows.step_batch(step, tiny_run.ROWS), 11))]

    torch.compiler.reset()  # torch compiles a function at most eight times, and other tests of this process count
    graphs = counters["stats"]["unique_graphs"]
    log = tiny_run.losses_of(model, batches, folder / way, compiled=way == "compiled")
    assert len(log) == tiny_run.STEPS
    assert (counters["stats"]["unique_graphs"] > graphs) == (way == "compiled")
    return model, log


def assert_same_in_float64(folder: Path, rows: Examples, way: str, layers: int = 2) -> None:
    model, log = fifty_steps(folder, rows, "plain", torch.float64, layers)
    other, fast = fifty_steps(folder, rows, way, torch.float64, layers)
    assert tiny_run.furthest(log, fast) < 1e-9  # losses, gradient norms, rates
    for (name, mine), theirs in zip(model.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(theirs, mine, atol=1e-9, rtol=0, msg=name)


def assert_same_losses_in_fp32(folder: Path, rows: Examples, way: str) -> None:
    logs = [fifty_steps(folder, rows, some, torch.float32, 2)[1] for some in ("plain", way)]
    assert tiny_run.furthest(*([{name: line[name] for name in ("mlm", "nsp")} for line in log] for log in logs)) < 1e-4


@pytest.mark.parametrize("way", [*CUT, "padded further"])
def test_micro_batches_and_padding_change_nothing_in_float64(tmp_path: Path, examples: Examples, way: str) -> None:
    assert_same_in_float64(tmp_path, examples, way)


@pytest.mark.parametrize("way", [*CUT, "padded further"])
def test_micro_batches_and_padding_leave_the_losses_in_fp32(tmp_path: Path, examples: Examples, way: str) -> None:
    assert_same_losses_in_fp32(tmp_path, examples, way)


@pytest.mark.slow
def test_a_compiled_step_changes_nothing_in_float64(tmp_path: Path, examples: Examples) -> None:
    """With one layer: the compiler takes most of a minute if its cache is empty. The slow tests have two layers."""
    assert_same_in_float64(tmp_path, examples, "compiled", layers=1)


@pytest.mark.slow
def test_a_compiled_step_of_two_layers_changes_nothing(tmp_path: Path, examples: Examples) -> None:
    assert_same_in_float64(tmp_path / "float64", examples, "compiled")
    assert_same_losses_in_fp32(tmp_path / "fp32", examples, "compiled")
