"""Every class of BERT's successors in transformers and ours on random weights: states, outputs, loss, gradients.

`python -m pytest -s -q tests/parity/test_families.py tests/parity/test_gpt2.py` prints the largest differences of each
family.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from bertwright.interop.import_model import import_model
from bertwright.model.bert import ARCHITECTURES, open_architecture
from bertwright.model.folder import open_model, save_model
from tests.parity.test_architectures import gradient, loss_of, targets
from tests.support.parity import Largest, padded_batch
from tests.support.published_families import Published, classes, family_named, publish


@pytest.mark.parametrize(("published", "kind"), classes())
def test_every_number_agrees(
    tmp_path: Path, own_tokenizer: Path, published: Published, kind: str, largest: Largest
) -> None:
    """Outputs, states and loss within 1e-5; every gradient within 1e-4 of its size; the same tensors when saved."""
    theirs = publish(tmp_path / "m", published, kind, own_tokenizer)
    saved = open_model(str(tmp_path / "m"))
    assert saved.architecture == kind
    ours = open_architecture(saved)
    rows = (2, 3) if kind == "BertForMultipleChoice" else (4,)
    ids, segments, mask = padded_batch(saved.config.vocab_size, rows=rows)
    if kind == "BertForQuestionAnswering":  # the states of padding are others, and the loss is over all positions
        ids, mask = torch.where(mask, ids, 7), torch.ones_like(mask)
    ids = ids.masked_fill(~mask, saved.config.pad_id)
    wanted = targets(kind, ids, mask)
    typed = {"token_type_ids": segments} if saved.config.num_segments > 1 else {}
    named = {"sentence_order_label" if name == "next_sentence_label" else name: ids for name, ids in wanted.items()}
    answer = theirs(input_ids=ids, attention_mask=mask.long(), output_hidden_states=True, **typed, **named)
    if "sop_logits" in answer:
        answer["seq_relationship_logits"] = answer["sop_logits"]
    outputs = ours(ids, segments, mask)

    def compare(mine: Tensor, other: Tensor, measure: str) -> None:
        largest.compare(published.family, measure, mine, other)

    assert set(outputs) <= set(ARCHITECTURES[kind].outputs)
    for name, values in outputs.items():
        per_token = values.shape[:2] == mask.shape
        where = mask if per_token else slice(None)
        compare(values[where], answer[name][where], "outputs")
    flat = [part.flatten(0, -2) for part in (ids, segments, mask)]
    states = ours.encoder(*flat, all_hidden=True).hidden
    assert len(states) == len(answer.hidden_states) == saved.config.layers + 1
    for mine, other in zip(states, answer.hidden_states, strict=True):
        compare(mine[flat[2]], other[flat[2]], "states")
    loss = loss_of(kind, outputs, wanted) if wanted else _sum_of(outputs, mask)
    expected = answer.loss if wanted else _sum_of({name: answer[name] for name in outputs}, mask)
    compare(loss, expected, "loss")
    loss.backward()
    expected.backward()
    largest.note(published.family, "gradients", _compare_gradients(published, kind, ours, theirs))
    save_model(tmp_path / "again", ours, config=saved.config, tokenizer=own_tokenizer, architecture=kind)
    _assert_same_tensors(tmp_path)
    assert import_model(str(tmp_path / "m"), tmp_path / "imported")["architecture"] == kind


def _sum_of(outputs: dict[str, Tensor], mask: Tensor) -> Tensor:
    """Return a loss of an encoder's outputs, of the states of real tokens alone."""
    return outputs["last_hidden_state"][mask].square().sum() / 100 + sum(
        pooled.sum() for name, pooled in outputs.items() if name == "pooler_output"
    )


def _compare_gradients(published: Published, kind: str, ours: torch.nn.Module, theirs: Any) -> float:
    """Compare the gradients of all parameters; return the largest difference relative to the norm of all gradients."""
    family = family_named(published.family)
    mine = family.weights_to_foreign({name: gradient(part) for name, part in ours.named_parameters()}, kind)
    tied = dict(family.tied)
    named = {family._full_name(name): part for name, part in theirs.named_parameters()}
    named = {tied.get(name, name): part for name, part in named.items()}
    assert set(mine) == set(named)
    # What is added to all logits of a softmax (a key's bias, a choice's) has the gradient 0: only rounding is left.
    norm = float(torch.stack([part.norm() for part in mine.values()]).norm())
    largest = 0.0
    for name, part in mine.items():
        other = gradient(named[name])
        if any(table in name for table in ("word_embeddings", "position_embeddings", "tok_embeddings")):
            part, other = part[2:], other[2:]  # transformers gives the embeddings of the padding no gradient
        difference, size = float((part - other).norm()), float(other.norm())
        assert difference <= 1e-4 * size + 1e-6 * norm, name
        largest = max(largest, difference / norm)
    return largest


def _assert_same_tensors(folder: Path) -> None:
    """Compare the file that transformers wrote with ours: equal bits, and the same names but for the prefix."""
    theirs, ours = (load_file(folder / name / "model.safetensors") for name in ("m", "again"))
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name if name in theirs else name.partition(".")[2]]), name
    assert len(ours) == len(theirs)
