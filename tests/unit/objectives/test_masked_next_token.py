"""Masked next-token prediction: the loss against two classes of transformers, the rows, what a state cannot see."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bertwright.corpus.shards import Corpus
from bertwright.errors import InputError
from bertwright.model.folder import SavedModel
from bertwright.model.system import system_config
from bertwright.objectives.batches import split_batch
from bertwright.objectives.dataset import Examples, Unmasked
from bertwright.objectives.masked_next_token import (
    MixedBatch,
    MixedModel,
    MixedRows,
    mixed_inputs,
    open_mixed,
)
from bertwright.objectives.settings import ExampleSettings
from bertwright.text.wordpiece import Tokenizer
from tests.support.gpt_bert import both_classes, random_gpt_bert

LENGTH = 24


@pytest.fixture(scope="module")
def mixed_model(own_tokenizer: Path) -> MixedModel:
    """A model with random weights in float64."""
    return random_gpt_bert(own_tokenizer).double()


@pytest.fixture(scope="module")
def opened(own_corpus: Path) -> Corpus:
    """The corpus of the tests."""
    return Corpus.open(own_corpus)


def rows_with(corpus: Corpus, share: float, kind: type[Any] = MixedRows) -> Any:
    """Return rows of which the fraction `share` is causal."""
    settings = ExampleSettings(second_sentence="none", causal_share=share)
    return kind(corpus, settings, length=LENGTH, seed=3, write_plans=False)


def plain_losses(classes: tuple[Any, Any], batch: MixedBatch) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return the loss of each masked piece, and of each token of causal rows after the first, row by row."""
    masked_class, causal_class = classes
    masked, following = [], []
    for row, length in enumerate(batch.lengths.tolist()):
        ids = torch.from_numpy(batch.ids[row, :length]).long()[None]
        if batch.causal[row]:
            logarithms = causal_class(input_ids=ids).logits[0].log_softmax(-1)
            following += [-logarithms[at - 1, ids[0, at]] for at in range(1, length)]
            continue
        logarithms = masked_class(input_ids=ids).logits[0].log_softmax(-1)
        for at, label, weight in zip(batch.positions[row], batch.labels[row], batch.weights[row], strict=True):
            if weight:
                masked.append(-logarithms[at - 1, label])
    return masked, following


def test_the_loss_is_that_of_two_classes_of_transformers(
    tmp_path: Path, mixed_model: MixedModel, opened: Corpus, own_tokenizer: Path
) -> None:
    classes = both_classes(tmp_path, random_gpt_bert(own_tokenizer), own_tokenizer)
    batch = rows_with(opened, 0.5).batch(0, np.arange(12))
    assert 2 < batch.causal.sum() < 10
    masked, following = plain_losses(classes, batch)
    task, inputs = mixed_model.trainable(), mixed_inputs(batch)
    terms, counts = task.step(inputs), task.counts(inputs)
    assert counts == {"predictions": len(masked), "next_tokens": len(following)}
    means = {name: total / counts[counted] for name, (total, counted) in terms.items()}
    expected = 0.75 * torch.stack(masked).mean() + 0.25 * torch.stack(following).mean()
    loss = task.loss(means.items())
    torch.testing.assert_close(loss, expected, atol=1e-6, rtol=0)
    loss.backward()
    expected.backward()
    wanted = sum(part.bert.embeddings.word_embeddings.weight.grad for part in classes)
    gradient = mixed_model.encoder.embeddings.word.weight.grad
    assert gradient is not None
    torch.testing.assert_close(gradient[1:], wanted[1:], atol=1e-6, rtol=1e-6)  # theirs has no padding


def test_one_kind_of_rows_alone_has_a_loss_too(mixed_model: MixedModel, opened: Corpus) -> None:
    for share, none in ((0.0, "lm"), (1.0, "mlm")):
        terms = mixed_model.trainable().step(mixed_inputs(rows_with(opened, share).batch(0, np.arange(3))))
        assert float(terms[none][0].detach()) == 0
        assert all(bool(total.isfinite()) for total, _ in terms.values())


def test_metrics_without_causal_rows_are_those_of_masked_lm(mixed_model: MixedModel, opened: Corpus) -> None:
    """A timed evaluation has batches of masked LM after the last one of causal rows."""
    masked, causal = ([rows_with(opened, share).batch(0, np.arange(4))] for share in (0.0, 1.0))
    with torch.inference_mode():
        both, alone = mixed_model.metrics(masked, causal), mixed_model.metrics(masked, [])
    assert both.keys() - alone.keys() == {"lm_loss", "lm_accuracy", "lm_perplexity"}
    assert all(both[name] == value for name, value in alone.items())


def test_causal_rows_are_the_text_and_the_others_are_those_of_masked_lm(opened: Corpus) -> None:
    mixed, masked, text = (rows_with(opened, 0.25, kind) for kind in (MixedRows, Examples, Unmasked))
    numbers = np.arange(mixed.num_rows(0))
    ours, theirs, plain = (rows.batch(0, numbers) for rows in (mixed, masked, text))
    causal = ours.causal
    assert 0.1 < causal.mean() < 0.4
    assert np.array_equal(ours.ids[causal], plain.ids[causal])
    assert not ours.weights[causal].any()
    for name in ("ids", "positions", "labels", "weights"):
        assert np.array_equal(getattr(ours, name)[~causal], getattr(theirs, name)[~causal]), name
    assert np.array_equal(theirs.ids, masked.batch(0, numbers).ids)
    # the choice depends on the row and its epoch, not on the batch
    some = np.array([5, 0, 2])
    assert np.array_equal(mixed.batch(0, some).causal, causal[some])
    assert np.array_equal(np.concatenate([part.causal for part in split_batch(ours, 2)]), causal)
    count = min(mixed.num_rows(0), mixed.num_rows(1))
    assert not np.array_equal(mixed.batch(1, numbers[:count]).causal, causal[:count])


def test_no_state_sees_what_it_predicts(mixed_model: MixedModel, opened: Corpus, own_tokenizer: Path) -> None:
    """A causal state depends on no later piece. A masked piece is behind [MASK], also for the state before it."""
    batch = rows_with(opened, 0.5).batch(0, np.arange(8))
    row = int(np.flatnonzero(batch.causal & (batch.lengths > 12))[0])
    states = everywhere(mixed_model, batch)
    changed = batch.ids.copy()
    changed[row, 8:12] = (changed[row, 8:12] + 7) % 400
    after = everywhere(mixed_model, replace(batch, ids=changed))
    assert torch.equal(after[row, :8], states[row, :8])
    assert not torch.allclose(after[row, 8], states[row, 8])
    both = int(np.flatnonzero(~batch.causal & (batch.lengths > 12))[0])
    changed = batch.ids.copy()
    changed[both, 8:12] = (changed[both, 8:12] + 7) % 400
    assert not torch.allclose(everywhere(mixed_model, replace(batch, ids=changed))[both, 2], states[both, 2])
    # with [MASK] for each chosen piece, the text behind the masks decides the labels and nothing else
    masks, mask_id = (batch.weights > 0).nonzero(), Tokenizer.load(own_tokenizer).mask_id
    shown = batch.ids.copy()
    shown[masks[0], batch.positions[masks]] = mask_id
    hidden = replace(batch, ids=shown)
    first, second = (mixed_inputs(replace(hidden, labels=labels)) for labels in (batch.labels, batch.labels + 1))
    assert torch.equal(mixed_model(first)[0], mixed_model(second)[0])
    at = int(batch.positions[both][0])
    alone = mixed_model.encoder(first.ids[both][None], first.segments[both][None], first.mask[both][None]).last[
        0, at - 1
    ]
    column = (first.picked == both * LENGTH + at).nonzero().item()
    torch.testing.assert_close(mixed_model(first)[0][int(column)], alone)


def everywhere(mixed_model: MixedModel, batch: MixedBatch) -> torch.Tensor:
    """Return the states of all tokens of a batch [B, T, D]."""
    inputs = mixed_inputs(batch)
    with torch.inference_mode():
        return mixed_model.encoded(inputs, inputs.at).last


def test_metrics_are_those_of_both_uses(
    tmp_path: Path, mixed_model: MixedModel, opened: Corpus, own_tokenizer: Path
) -> None:
    classes = both_classes(tmp_path, random_gpt_bert(own_tokenizer), own_tokenizer)
    masked, causal = (rows_with(opened, share).batch(0, np.arange(6)) for share in (0.0, 1.0))
    with torch.inference_mode():
        expected, following = plain_losses(classes, masked)[0], plain_losses(classes, causal)[1]
        metrics = mixed_model.metrics([masked], [rows_with(opened, 0.0, Unmasked).batch(0, np.arange(6))])
    assert metrics["mlm_loss"] == pytest.approx(float(torch.stack(expected).mean()), abs=1e-6)
    assert metrics["lm_loss"] == pytest.approx(float(torch.stack(following).mean()), abs=1e-6)
    assert (metrics["rows"], metrics["predictions"]) == (6, len(expected))
    assert {"mlm_accuracy", "lm_accuracy", "mlm_perplexity", "lm_perplexity"} <= metrics.keys()


def test_random_weights_are_refused(own_tokenizer: Path) -> None:
    config = system_config("gpt-bert", "tiny", vocab_size=500)
    with pytest.raises(InputError, match="random weights have learned nothing"):
        open_mixed(SavedModel("random:gpt-bert:tiny", config, None, own_tokenizer))
