"""Our model folders opened by transformers: the same hidden states, logits, loss and gradients."""

from pathlib import Path

import pytest
import torch

from bertwright.model.attention_init import init_attention
from bertwright.model.config import EncoderConfig
from bertwright.model.encoder import init_weights
from bertwright.model.folder import open_model, save_model
from bertwright.objectives.masked_lm import Inputs, PretrainingModel
from bertwright.tasks.classification.model import Classifier, TextBatch
from bertwright.text.wordpiece import Tokenizer
from tests.support.parity import padded_batch

transformers = pytest.importorskip("transformers", reason="the oracle; it is in the dev extra")


def config_for(tokenizer: Path, activation: str) -> EncoderConfig:
    return EncoderConfig(
        vocab_size=Tokenizer.load(tokenizer).vocab_size,
        hidden=32,
        layers=3,
        heads=4,
        intermediate=48,
        max_positions=40,
        activation=activation,  # type: ignore[arg-type]
        initializer_range=0.3,
    )


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
def test_pretraining_model_agrees(tmp_path: Path, own_tokenizer: Path, activation: str) -> None:
    settings = config_for(own_tokenizer, activation)
    ours = PretrainingModel(settings)
    init_weights(ours, settings.initializer_range, torch.Generator().manual_seed(1))
    init_attention(ours.encoder, "matching", generator=torch.Generator().manual_seed(2))
    torch.nn.init.normal_(ours.masked_lm.bias, generator=torch.Generator().manual_seed(3))
    save_model(tmp_path / "m", ours, config=settings, tokenizer=own_tokenizer, architecture="BertForPreTraining")
    theirs = transformers.BertForPreTraining.from_pretrained(tmp_path / "m").eval()
    ours.eval()
    ids, segments, mask = padded_batch(settings.vocab_size)
    picked_at = torch.tensor([[0, 2, 5], [0, 1, 9], [0, 1, 2], [0, 15, 3]])
    labels = torch.full_like(ids, -100)
    labels.scatter_(1, picked_at[:, 1:], ids.gather(1, picked_at[:, 1:]))
    is_random = torch.tensor([0, 1, 1, 0])
    answer = theirs(
        input_ids=ids,
        token_type_ids=segments,
        attention_mask=mask.long(),
        labels=labels,
        next_sentence_label=is_random,
        output_hidden_states=True,
    )
    inputs = Inputs(
        ids=ids,
        segments=segments,
        mask=mask,
        at=picked_at,
        picked=torch.tensor([1, 2, 4, 5, 7, 8, 10, 11]),
        labels=ids.gather(1, picked_at[:, 1:]).flatten(),
        is_random=is_random,
    )
    states = ours.encoder(ids, segments, mask, all_hidden=True)
    for mine, other in zip(states.hidden, answer.hidden_states, strict=True):
        torch.testing.assert_close(mine[mask], other[mask], atol=1e-5, rtol=1e-5)
    logits, pair = ours.logits(inputs)
    whole = answer.prediction_logits.gather(1, picked_at[:, 1:, None].expand(-1, -1, settings.vocab_size)).flatten(0, 1)
    torch.testing.assert_close(logits, whole, atol=1e-4, rtol=1e-5)
    assert pair is not None
    torch.testing.assert_close(pair, answer.seq_relationship_logits, atol=1e-5, rtol=1e-5)
    terms = ours.losses(inputs)
    loss = terms["mlm"][0] / 8 + terms["nsp"][0] / 4
    torch.testing.assert_close(loss, answer.loss, atol=1e-5, rtol=1e-5)
    loss.backward()
    answer.loss.backward()
    mine, other = ours.encoder.embeddings.word.weight.grad, theirs.bert.embeddings.word_embeddings.weight.grad
    assert mine is not None
    # transformers gives the padding piece no gradient from its embedding; the tied projection still does.
    torch.testing.assert_close(mine[1:], other[1:], atol=1e-5, rtol=1e-4)
    first = ours.encoder.layers[0].attention.qkv.weight.grad  # type: ignore[union-attr]
    torch.testing.assert_close(
        first[:32], theirs.bert.encoder.layer[0].attention.self.query.weight.grad, atol=1e-5, rtol=1e-4
    )


def test_classifier_agrees_and_its_folder_comes_back(tmp_path: Path, own_tokenizer: Path) -> None:
    settings = config_for(own_tokenizer, "gelu")
    ours = Classifier(settings, 3)
    init_weights(ours, settings.initializer_range, torch.Generator().manual_seed(1))
    save_model(
        tmp_path / "m",
        ours,
        config=settings,
        tokenizer=own_tokenizer,
        architecture="BertForSequenceClassification",
        labels=("a", "b", "c"),
    )
    theirs = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "m").eval()
    assert theirs.config.id2label == {0: "a", 1: "b", 2: "c"}
    ids, segments, mask = padded_batch(settings.vocab_size)
    answer = theirs(input_ids=ids, token_type_ids=segments, attention_mask=mask.long()).logits
    torch.testing.assert_close(ours.eval()(TextBatch(ids, segments, mask)), answer, atol=1e-5, rtol=1e-5)
    assert open_model(str(tmp_path / "m")).labels == ("a", "b", "c")
