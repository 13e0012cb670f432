"""Replaced-token detection: the losses against transformers' two classes, the sampling, what counts, the metrics."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from bertwright.errors import InputError
from bertwright.model.bert import Bert
from bertwright.model.config import size_config
from bertwright.model.encoder import init_weights
from bertwright.model.families.electra import DISCRIMINATOR, ElectraConfig
from bertwright.model.folder import open_model, save_model
from bertwright.objectives.batches import split_batch
from bertwright.objectives.replaced_tokens import (
    ReplacedTokenModel,
    SampledRows,
    generator_config,
    open_replaced_tokens,
    sample_pieces,
    sampled_inputs,
    save_generator,
    weights_of_discriminator,
    with_generator,
    with_pieces,
)
from bertwright.objectives.settings import ExampleSettings
from bertwright.text.wordpiece import Tokenizer

LENGTH = 24


def random_model(vocab_size: int) -> ReplacedTokenModel:
    """Return a model of two layers of 32 with embeddings 16 wide, without dropout, and a generator 16 wide."""
    shape = {"hidden": 32, "layers": 2, "heads": 4, "intermediate": 80, "max_positions": 40, "embedding_size": 16}
    no_dropout = {"hidden_dropout": 0.0, "attention_dropout": 0.0}
    config = ElectraConfig.model_validate({"vocab_size": vocab_size, **shape, **no_dropout})
    model = ReplacedTokenModel(config, generator_width=0.5)
    draw = torch.Generator().manual_seed(2)
    init_weights(model, 0.3, draw)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=draw))
    return model.eval()


@pytest.fixture(scope="module")
def rows(own_corpus: Path) -> SampledRows:
    """Rows of the text of the tests, all of whose chosen pieces are masked."""
    from bertwright.corpus.shards import Corpus

    masking = {"mask": 1.0, "same": 0.0, "random": 0.0}
    settings = ExampleSettings.model_validate({"second_sentence": "none", "masking": masking})
    return SampledRows(Corpus.open(own_corpus), settings, length=LENGTH, seed=3, write_plans=False)


def saved_pair(folder: Path, model: ReplacedTokenModel, tokenizer: Path) -> str:
    """Write both models as a run does; return the folder of the discriminator."""
    config, weights = model.encoder.config, model.state_dict()
    kept = weights_of_discriminator(weights)
    save_model(folder / "model", kept, config=config, tokenizer=tokenizer, architecture=DISCRIMINATOR)
    save_generator(folder / "generator", weights, config=config, tokenizer=tokenizer)
    return str(folder / "model")


def sampled_one_by_one(logits: Tensor, draws: list[int]) -> list[int]:
    """Return for each row of logits the first piece at which the summed probabilities exceed the drawn number."""
    pieces = []
    for row, drawn in zip(logits.double().softmax(1).tolist(), draws, strict=True):
        total, piece = 0.0, -1
        while total <= drawn / 2**32:
            piece += 1
            total += row[piece]
        pieces.append(piece)
    return pieces


def test_losses_and_gradients_are_those_of_two_classes_of_transformers(
    tmp_path: Path, rows: SampledRows, own_tokenizer: Path
) -> None:
    transformers = pytest.importorskip("transformers", reason="the oracle; it is in the dev extra")
    model = random_model(Tokenizer.load(own_tokenizer).vocab_size)
    saved_pair(tmp_path, model, own_tokenizer)
    generator = transformers.ElectraForMaskedLM.from_pretrained(tmp_path / "generator").eval()
    discriminator = transformers.ElectraForPreTraining.from_pretrained(tmp_path / "model").eval()
    inputs = sampled_inputs(rows.batch(0, np.arange(6)))
    # the plain loop
    masked = {"input_ids": inputs.ids.long(), "attention_mask": inputs.mask.long()}
    labels = torch.full_like(masked["input_ids"], -100)
    row, column = (inputs.ids == Tokenizer.load(own_tokenizer).mask_id).nonzero(as_tuple=True)
    labels[row, column] = inputs.labels
    filled = generator(**masked, labels=labels)
    pieces = torch.tensor(sampled_one_by_one(filled.logits[row, column], inputs.draws.tolist()))
    text, seen = masked["input_ids"].clone(), masked["input_ids"].clone()
    text[row, column], seen[row, column] = inputs.labels, pieces
    detected = discriminator(input_ids=seen, attention_mask=masked["attention_mask"], labels=(seen != text).long())
    expected = filled.loss + 50 * detected.loss
    # ours
    task = model.trainable()
    terms, counts = task.step(inputs), task.counts(inputs)
    means = {name: total / counts[counted] for name, (total, counted) in terms.items()}
    torch.testing.assert_close(means["mlm"], filled.loss, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(means["rtd"], detected.loss, atol=1e-5, rtol=1e-5)
    assert 0 < int((seen != text).sum()) < int((seen == text).sum())
    # the z-loss is that of the generator
    with_z, bias = model.trainable(z_weight=0.03).step(inputs), model.generator.masked_lm.bias
    filled_logits = filled.logits.detach()[row, column]
    log_z = filled_logits.exp().sum(1, keepdim=True).log()
    torch.testing.assert_close(with_z["z"][0], 0.03 * log_z.square().sum(), atol=0, rtol=1e-4)
    torch.testing.assert_close(with_z["mlm"][0], terms["mlm"][0])
    (more,) = torch.autograd.grad(with_z["mlm"][0] - task.step(inputs)["mlm"][0], bias)
    torch.testing.assert_close(more, (0.06 * log_z * filled_logits.softmax(1)).sum(0), atol=1e-5, rtol=1e-3)
    loss = task.loss(means.items())
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=1e-5)
    loss.backward()
    expected.backward()
    tables = [part.electra.embeddings.word_embeddings.weight.grad for part in (generator, discriminator)]
    ours = model.encoder.embeddings.word.weight.grad
    assert ours is not None
    torch.testing.assert_close(ours[1:], (tables[0] + tables[1])[1:], atol=1e-4, rtol=1e-4)


def test_pieces_are_drawn_from_the_softmax() -> None:
    probabilities = torch.tensor([0.5, 0.0, 0.125, 0.25, 0.125])
    states, count = torch.ones(1, 1), 1024
    draws = (2 * torch.arange(count) + 1) * 2**21  # the middles of equal parts
    expanded = states.expand(count, 1).contiguous()
    pieces = sample_pieces(expanded, torch.zeros(5, 1), probabilities.log(), draws, False)
    assert torch.bincount(pieces, minlength=5).tolist() == [512, 0, 128, 256, 128]
    last = sample_pieces(states, torch.zeros(5, 1), probabilities.log(), torch.tensor([2**32 - 1]), False)
    assert last.tolist() == [4]
    broken = sample_pieces(states, torch.full((5, 1), math.nan), torch.zeros(5), torch.tensor([7]), False)
    assert 0 <= int(broken) < 5


def test_a_piece_that_equals_the_text_is_no_replacement(rows: SampledRows) -> None:
    inputs = sampled_inputs(rows.batch(0, np.arange(2)))
    ids, replaced = with_pieces(inputs, inputs.labels)
    assert not replaced.any()
    pieces = inputs.labels.clone()
    pieces[0] = (pieces[0] + 1) % 400
    other, replaced = with_pieces(inputs, pieces)
    assert (other != ids).equal(replaced)
    assert int(replaced.sum()) == 1
    assert replaced.nonzero()[0].tolist() == [0, int(inputs.at[0, 1])]


def test_the_numbers_of_a_row_do_not_depend_on_its_batch(rows: SampledRows) -> None:
    batch, alone = rows.batch(1, np.array([4, 0, 2])), rows.batch(1, np.array([2]))
    assert np.array_equal(batch.draws[2:], alone.draws)
    assert np.array_equal(np.concatenate([part.draws for part in split_batch(batch, 2)]), batch.draws)
    assert not np.array_equal(rows.batch(0, np.array([2])).draws, alone.draws)
    assert 0 <= batch.draws.min() <= batch.draws.max() < 2**32


def test_metrics_are_those_of_a_plain_count(rows: SampledRows, own_tokenizer: Path) -> None:
    model = random_model(Tokenizer.load(own_tokenizer).vocab_size)
    batches = list(rows.first(5, batch_size=2))
    counted, loss = {"right": 0, "said": 0, "found": 0, "replaced": 0, "tokens": 0}, 0.0
    with torch.inference_mode():
        metrics = model.metrics(batches)
        for batch in batches:
            inputs = sampled_inputs(batch)
            _, logits, replaced = model(inputs)
            for logit, is_replaced, real in zip(
                logits.flatten().tolist(), replaced.flatten().tolist(), inputs.mask.flatten().tolist(), strict=True
            ):
                if real:
                    said = logit > 0
                    counted["tokens"] += 1
                    counted["right"] += said == is_replaced
                    counted["said"] += said
                    counted["replaced"] += is_replaced
                    counted["found"] += said and is_replaced
                    loss += math.log1p(math.exp(-logit if is_replaced else logit))
    assert metrics["rtd_accuracy"] == pytest.approx(counted["right"] / counted["tokens"])
    assert metrics["rtd_precision"] == pytest.approx(counted["found"] / counted["said"])
    assert metrics["rtd_recall"] == pytest.approx(counted["found"] / counted["replaced"])
    assert metrics["rtd_loss"] == pytest.approx(loss / counted["tokens"], rel=1e-5)
    assert metrics["rows"] == 5
    assert 0 <= metrics["mlm_accuracy"] < 1 < metrics["mlm_loss"]


@pytest.mark.parametrize(
    ("size", "width", "wanted"),
    [("base", 0.25, (192, 3)), ("base", 1 / 3, (256, 4)), ("tiny", 0.25, (32, 1)), ("4x512", 0.3, (154, 2))],
)
def test_the_generator_has_the_same_layers_and_narrower_states(
    size: str, width: float, wanted: tuple[int, int]
) -> None:
    config = size_config(size, 100)
    narrow = generator_config(config, width)
    assert (narrow.hidden, narrow.heads, narrow.intermediate) == (*wanted, 4 * wanted[0])
    assert narrow.layers == config.layers
    type(config).model_validate(narrow.model_dump())


def test_both_models_come_back_and_a_wrong_pair_is_refused(tmp_path: Path, own_tokenizer: Path) -> None:
    model = random_model(Tokenizer.load(own_tokenizer).vocab_size)
    assert len(model.state_dict()) == len(list(model.parameters()))  # shared tables have a single name
    folder = saved_pair(tmp_path, model, own_tokenizer)
    opened = open_replaced_tokens(with_generator(open_model(folder)))
    weights = model.state_dict()
    assert all(torch.equal(part, weights[name]) for name, part in opened.state_dict().items())
    with pytest.raises(InputError, match=r"expected ELECTRA's discriminator \(ElectraForPreTraining\), got its gener"):
        with_generator(open_model(str(tmp_path / "generator")))
    (tmp_path / "model").rename(tmp_path / "alone")
    with pytest.raises(InputError, match="expected a run of --system electra, with the discriminator in model/ and"):
        open_replaced_tokens(with_generator(open_model(str(tmp_path / "alone"))))
    other = Bert(model.encoder.config, DISCRIMINATOR)
    save_model(
        tmp_path / "model", other, config=other.encoder.config, tokenizer=own_tokenizer, architecture=DISCRIMINATOR
    )
    with pytest.raises(InputError, match=r"expected the generator with which .* was trained, with the same"):
        with_generator(open_model(str(tmp_path / "model")))
