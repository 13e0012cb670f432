"""Language models: the loss against plain shifted logits, who sees whom, what is counted, and what is measured."""

import math
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bertwright.errors import InputError
from bertwright.model.config import SingleBackboneConfig
from bertwright.model.encoder import init_weights
from bertwright.model.families.elmo import LSTMConfig
from bertwright.model.folder import open_model, save_model
from bertwright.model.system import MASKED_LM_SYSTEMS, SYSTEMS, System, system_config
from bertwright.objectives.batches import TokenBatch, split_batch
from bertwright.objectives.language_model import (
    LanguageInputs,
    LanguageModel,
    language_inputs,
    open_language_model,
)
from bertwright.objectives.vocabulary_loss import bits_per_character, characters_of
from bertwright.text.bpe import train_bpe
from bertwright.text.byte_pairs import train_byte_pairs
from bertwright.text.published_tokenizer import PublishedTokenizer

VOCAB, LENGTH = 60, 11
LENGTHS = (11, 7, 2, 1)
LANGUAGE: tuple[System, ...] = tuple(system for system in SYSTEMS if system not in MASKED_LM_SYSTEMS)


def shape(system: System) -> SingleBackboneConfig:
    config = system_config(system, "2x128", VOCAB, initializer_range=0.1, max_positions=20)
    small = {"hidden": 32, "hidden_dropout": 0.0}
    small |= {"cells": 48} if isinstance(config, LSTMConfig) else {"intermediate": 128, "attention_dropout": 0.0}
    return type(config).model_validate({**config.model_dump(), **small})


def random_language_model(system: System, kind: torch.dtype = torch.float64) -> LanguageModel:
    model = LanguageModel(shape(system)).to(kind)
    init_weights(model, 0.3, torch.Generator().manual_seed(1))
    if isinstance(model.output.bias, torch.nn.Parameter):
        torch.nn.init.normal_(model.output.bias, generator=torch.Generator().manual_seed(2))
    return model.eval()


def token_batch(lengths: tuple[int, ...] = LENGTHS) -> TokenBatch:
    ids = np.random.default_rng(0).integers(5, VOCAB, (len(lengths), LENGTH)).astype(np.int32)
    ids[np.arange(LENGTH) >= np.array(lengths)[:, None]] = 0
    return TokenBatch(ids, np.zeros_like(ids), np.array(lengths, np.int32))


def plain_language_losses(model: LanguageModel, rows: TokenBatch) -> list[list[float]]:
    """The loss of each prediction, row by row, from logits at all positions."""
    losses = []
    words = model.encoder.word_embeddings()[0].weight
    for ids, length in zip(torch.from_numpy(rows.ids).long(), rows.lengths, strict=True):
        alone = ids[None, :length]
        last = model.encoder(alone, torch.zeros_like(alone), torch.ones_like(alone, dtype=torch.bool)).last[0]
        logits = F.linear(model.output.states(last), words, model.output.bias)
        asking, targets = (logits[:-1], alone[0, 1:]) if model.config.attends == "left" else (logits[1:], alone[0, :-1])
        losses.append(F.cross_entropy(asking, targets, reduction="none").tolist())
    return losses


@pytest.mark.parametrize("system", LANGUAGE)
@pytest.mark.parametrize("kind", [torch.float64, torch.float32])
def test_the_loss_is_that_of_shifted_logits(system: System, kind: torch.dtype) -> None:
    model, rows = random_language_model(system, kind), token_batch()
    tokens = language_inputs(rows, model.config)
    expected = list(chain.from_iterable(plain_language_losses(model, rows)))
    (loss, name) = model.losses(tokens)["lm"]
    assert name == "predictions"
    assert len(expected) == len(tokens.labels) == sum(length - 1 for length in LENGTHS)
    assert model.trainable().counts(tokens) == {"predictions": float(len(expected))}
    assert model.trainable().tokens(tokens) == sum(LENGTHS)
    assert float(loss.detach()) == pytest.approx(sum(expected), rel=1e-9 if kind == torch.float64 else 1e-5)
    logits = model.logits(tokens)
    assert F.cross_entropy(logits, tokens.labels, reduction="none").tolist() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("system", LANGUAGE)
def test_a_token_changes_no_loss_on_the_side_that_does_not_see_it(system: System) -> None:
    model, rows = random_language_model(system), token_batch((11,))
    ids = rows.ids.copy()
    ids[0, 5] = ids[0, 5] % (VOCAB - 6) + 6
    before, after = (
        np.array(plain_language_losses(model, changed)[0])
        for changed in (rows, TokenBatch(ids, rows.segments, rows.lengths))
    )
    moved = np.abs(before - after) > 1e-9
    # Prediction n is of token n + 1 from those up to n, or of token n from those behind it.
    if model.config.attends == "left":
        assert not moved[:4].any()
        assert moved[4:].all()
    else:
        assert not moved[6:].any()
        assert moved[:6].all()


@pytest.mark.parametrize("kind", ["lstm", "bert"])
def test_right_is_left_on_reversed_rows(kind: str) -> None:
    left, right = random_language_model(f"{kind}-left"), random_language_model(f"{kind}-right")  # type: ignore[arg-type]
    right.load_state_dict(left.state_dict())
    rows = token_batch((11,))
    if kind == "bert":  # positions are learned from the left: without them it is the same model
        for model in (left, right):
            torch.nn.init.zeros_(model.encoder.embeddings.position.weight)  # type: ignore[union-attr]
    turned = TokenBatch(rows.ids[:, ::-1].copy(), rows.segments, rows.lengths)
    mine, theirs = plain_language_losses(left, rows)[0], plain_language_losses(right, turned)[0]
    assert mine == pytest.approx(theirs[::-1], rel=1e-9)


@pytest.mark.parametrize("system", LANGUAGE)
@pytest.mark.parametrize("weight", [0.0, 0.03])
def test_gradients_reach_every_weight_and_equal_the_plain_ones(system: System, weight: float) -> None:
    model, rows = random_language_model(system, torch.float32), token_batch()
    tokens = language_inputs(rows, model.config)
    task = model.trainable(z_weight=weight)
    terms = task.step(tokens)
    task.loss((name, total) for name, (total, _) in terms.items()).backward()
    mine = {name: part.grad for name, part in model.named_parameters()}
    model.zero_grad()
    logits = model.logits(tokens)
    loss = F.cross_entropy(logits, tokens.labels, reduction="sum")
    z_loss = weight * logits.exp().sum(1).log().square().sum()
    (loss + z_loss).backward()
    assert list(terms) == (["lm", "z"] if weight else ["lm"])
    torch.testing.assert_close(terms["lm"][0], loss, atol=0, rtol=1e-5)
    torch.testing.assert_close(terms["z"][0] if weight else z_loss.detach(), z_loss.detach(), atol=0, rtol=1e-5)
    for name, part in model.named_parameters():
        assert mine[name] is not None, name
        torch.testing.assert_close(mine[name], part.grad, atol=1e-4, rtol=1e-4, msg=lambda text, n=name: f"{n}: {text}")


def test_rows_without_a_next_token_are_a_loss_of_zero() -> None:
    model = random_language_model("bert-left", torch.float32)
    tokens = language_inputs(token_batch((1, 1)), model.config)
    loss = model.losses(tokens)["lm"][0]
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert len(tokens.labels) == 0


def test_flops_by_hand() -> None:
    model, tokens = random_language_model("bert-left"), language_inputs(token_batch(), shape("bert-left"))
    width, inner = 32, 128
    backbone = 4 * (2 * (2 * LENGTH * (4 * width**2 + 2 * width * inner) + 4 * LENGTH**2 * width))
    predictions = sum(length - 1 for length in LENGTHS)
    assert model.flops(tokens) == 3.0 * (backbone + 2 * predictions * width * (VOCAB + width))
    backbone = 4 * (2 * (2 * LENGTH * (8 * 48 * width + 48 * width)))
    assert random_language_model("lstm-left").flops(tokens) == 3.0 * (backbone + 2 * predictions * width * VOCAB)


def test_what_sees_both_sides_is_no_language_model() -> None:
    with pytest.raises(ValueError, match="attend to one side"):
        LanguageModel(shape("bert"))


# ---------------------------------------------------------------- what is measured


@pytest.mark.parametrize("system", ["bert-left", "lstm-right"])
def test_metrics_are_means_over_all_predictions(system: System) -> None:
    model, rows = random_language_model(system), token_batch()
    characters = np.arange(VOCAB) % 4 - 1  # a quarter of the pieces are no text, and a quarter begin no character
    losses = list(chain.from_iterable(plain_language_losses(model, rows)))
    labels = language_inputs(rows, model.config).labels
    with torch.inference_mode():
        metrics = model.metrics(split_batch(rows, 3), characters=characters)
        right = (model.logits(language_inputs(rows, model.config)).argmax(1) == labels).float().mean()
    text = [loss for loss, label in zip(losses, labels.tolist(), strict=True) if characters[label] >= 0]
    assert 0 < len(text) < len(losses)
    assert metrics["lm_loss"] == pytest.approx(sum(losses) / len(losses))
    assert metrics["lm_perplexity"] == pytest.approx(math.exp(sum(losses) / len(losses)))
    assert metrics["lm_accuracy"] == pytest.approx(float(right))
    assert metrics["bits_per_character"] == pytest.approx(
        sum(text) / math.log(2) / float(characters[labels.numpy()].clip(min=0).sum())
    )
    assert (repr(metrics["rows"]), repr(metrics["predictions"])) == ("4", str(len(losses)))


def test_characters_of_byte_level_pieces_add_up_to_those_of_the_text() -> None:
    text = "The café's bridge, 漢字 and 🙂 wait\there."
    tokenizer = train_byte_pairs([text] * 3, vocab_size=300)
    characters = characters_of(tokenizer)
    assert sum(characters[id] for id in tokenizer.ids([text])[0]) == len("".join(text.split()))
    assert {characters[id] for id in tokenizer.special_ids if id != tokenizer.unk_id} == {-1}
    bare = PublishedTokenizer(tokenizer.described, {"eos_token": "</s>", "unk_token": "</s>", "pad_token": "</s>"})
    assert characters_of(bare)[bare.unk_id] == -1


def test_unknown_text_is_a_character_of_gpt_1_too() -> None:
    tokenizer = train_bpe(["the rain falls on the bridge"], merges=20)  # its padding and its unknown text have one id
    assert tokenizer.unk_id == tokenizer.pad_id
    assert characters_of(tokenizer)[tokenizer.unk_id] == 1


def test_characters_of_pieces() -> None:
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "river", "##ing", "#", "é", "the</w>", "qu"]
    tokenizer: Any = SimpleNamespace(pieces=pieces, special_ids=(0, 1, 2, 3, 4), unk_id=1, end_of_text_id=None)
    characters = characters_of(tokenizer)
    assert characters.tolist() == [-1, 1, -1, -1, -1, 5, 3, 1, 1, 3, 2]
    assert bits_per_character(math.log(2) * 12, 4) == pytest.approx(3.0)


# ---------------------------------------------------------------- model folders


@pytest.mark.parametrize("system", LANGUAGE)
def test_folders_come_back(system: System, tmp_path: Path) -> None:
    model = random_language_model(system, torch.float32)
    architecture = model.architecture
    save_model(tmp_path / "m", model, config=model.config, tokenizer=tmp_path, architecture=architecture)
    saved = open_model(str(tmp_path / "m"))
    assert saved.architecture == architecture
    again, tokens = open_language_model(saved), language_inputs(token_batch(), model.config)
    with torch.inference_mode():
        assert torch.equal(again.logits(tokens), model.logits(tokens))


@pytest.mark.parametrize(
    ("system", "kind"),
    [("bert-left", "BertLMHeadModel"), ("gpt", "OpenAIGPTLMHeadModel"), ("gpt2", "GPT2LMHeadModel")],
)
def test_transformers_computes_the_same_logits(system: System, kind: str, tmp_path: Path) -> None:
    transformers: Any = pytest.importorskip("transformers", reason="the oracle; it is in the dev extra")
    model = random_language_model(system, torch.float32)
    assert model.architecture == kind
    save_model(tmp_path / "m", model, config=model.config, tokenizer=tmp_path, architecture=kind)
    theirs, said = getattr(transformers, kind).from_pretrained(tmp_path / "m", output_loading_info=True)
    assert not said["missing_keys"]
    assert not said["unexpected_keys"]
    ids = torch.from_numpy(token_batch().ids).long()
    mask = torch.arange(LENGTH) < torch.tensor(LENGTHS)[:, None]
    with torch.inference_mode():
        other: Tensor = theirs.eval()(input_ids=ids, attention_mask=mask.long()).logits
        tokens = language_inputs(token_batch(), model.config)
        mine = model.logits(tokens)
    torch.testing.assert_close(mine, other.flatten(0, 1)[tokens.picked], atol=1e-4, rtol=1e-4)


def test_only_language_models_are_opened_as_such(tmp_path: Path) -> None:
    saved = open_model("random:gpt:tiny", tokenizer=tmp_path, vocab_size=30)
    with pytest.raises(InputError, match="random weights have learned nothing"):
        open_language_model(saved)
    model = torch.nn.ModuleDict({"encoder": random_language_model("bert-left", torch.float32).encoder})
    config = shape("bert-left").model_copy(update={"attends": "both"})
    save_model(tmp_path / "m", model, config=config, tokenizer=tmp_path, architecture="BertModel")
    with pytest.raises(InputError, match="expected a language model"):
        open_language_model(open_model(str(tmp_path / "m")))


def test_tokens_of_a_batch_are_those_of_its_pieces() -> None:
    config = shape("lstm-right")
    whole = language_inputs(token_batch(), config)
    parts: list[LanguageInputs] = [language_inputs(part, config) for part in split_batch(token_batch(), 3)]
    assert torch.equal(torch.cat([part.labels for part in parts]), whole.labels)
