"""GPT-2 of transformers and ours on random weights: states, outputs, loss, gradients, and files both ways.

`tests/parity/test_families.py` says how to print the largest differences.
"""

import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from bertwright.interop.import_model import import_model
from bertwright.model.backbones import build_backbone
from bertwright.model.families.gpt2 import GPT2_ARCHITECTURE, GPT2_FAMILY, GPT2Config
from bertwright.model.folder import load_weights, open_model, save_model
from bertwright.objectives.language_model import LanguageInputs, LanguageModel
from bertwright.tasks.classification.model import Classifier, TextBatch
from bertwright.tasks.tagging.model import Tagger, TagRows
from tests.support.gpt2_files import publish_gpt2, write_gpt2_tokenizer
from tests.support.parity import Largest, assert_close, padded_batch

CLASSES = {
    GPT2_ARCHITECTURE: GPT2_ARCHITECTURE,
    "GPT2Model": "BertModel",
    "GPT2ForSequenceClassification": "BertForSequenceClassification",
    "GPT2ForTokenClassification": "BertForTokenClassification",
}
SHAPES: tuple[dict[str, Any], ...] = (
    {"pad_token_id": 0, "num_labels": 3},
    {"pad_token_id": 0, "num_labels": 3, "n_inner": 80, "activation_function": "gelu", "layer_norm_epsilon": 1e-3},
)


def _ours(kind: str, folder: Path) -> nn.Module:
    """Return our model of a folder with the heads of a class."""
    saved = open_model(str(folder))
    config = saved.config
    assert isinstance(config, GPT2Config)
    models: dict[str, Callable[[], nn.Module]] = {
        GPT2_ARCHITECTURE: lambda: LanguageModel(config),
        "GPT2Model": lambda: nn.ModuleDict({"encoder": build_backbone(config)}),
        "GPT2ForSequenceClassification": lambda: Classifier(config, 3),
        "GPT2ForTokenClassification": lambda: Tagger(config, 3),
    }
    model = models[kind]()
    load_weights(model, saved)
    return model.eval()


def _output(kind: str, model: Any, ids: Tensor, mask: Tensor) -> Tensor:
    """Return the class's output at the real tokens, or for each row."""
    if kind == GPT2_ARCHITECTURE:
        picked = mask.flatten().nonzero()[:, 0]
        output: Tensor = model.logits(LanguageInputs(ids, torch.zeros_like(ids), mask, picked, picked))
    elif kind == "GPT2ForSequenceClassification":
        output = model(TextBatch(ids, torch.zeros_like(ids), mask))
    elif kind == "GPT2ForTokenClassification":
        at = torch.arange(ids.shape[1]).expand(ids.shape)
        output = model(TagRows(ids, mask, at))[mask]
    else:
        output = model.encoder(ids, torch.zeros_like(ids), mask).last[mask]
    return output


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_number_agrees(tmp_path: Path, kind: str, shape: dict[str, Any], largest: Largest) -> None:
    """States, outputs and loss within 1e-5; gradients within 1e-4 of their size; the same tensors when saved."""
    theirs = publish_gpt2(tmp_path / "m", kind, **shape)
    saved = open_model(str(tmp_path / "m"))
    assert saved.architecture == CLASSES[kind]
    ours = _ours(kind, tmp_path / "m")
    ids, _, mask = padded_batch(90)
    more = {"output_hidden_states": True, "output_attentions": True}
    answer = theirs(input_ids=ids, attention_mask=mask.long(), **more)
    expected = answer[0] if kind == "GPT2ForSequenceClassification" else answer[0][mask]
    output = _output(kind, ours, ids, mask)
    compare = partial(largest.compare, "gpt2")
    compare("outputs", output, expected)
    states = ours.get_submodule("encoder")(ids, torch.zeros_like(ids), mask, all_hidden=True).hidden
    assert len(states) == len(answer.hidden_states) == saved.config.layers + 1
    for mine, other in zip(states, answer.hidden_states, strict=True):
        compare("states", mine[mask], other[mask])
    assert len(answer.attentions) == saved.config.layers
    for layer, other in enumerate(answer.attentions):
        real = mask[:, None, :, None].expand_as(other)
        attention = ours.get_submodule("encoder").attention(ids, torch.zeros_like(ids), mask, layer=layer)
        assert_close(attention[real], other[real])
    losses = [_loss(kind, part, ids, mask) for part in (output, expected)]
    if kind == GPT2_ARCHITECTURE:
        labels = ids.masked_fill(~mask, -100)
        compare("loss", losses[0], theirs(input_ids=ids, attention_mask=mask.long(), labels=labels).loss)
    compare("loss", losses[0], losses[1])
    for loss in losses:
        loss.backward()
    largest.note("gpt2", "gradients", _compare_gradients(kind, ours, theirs))
    (tmp_path / "tok").mkdir()
    save_model(
        tmp_path / "again",
        ours,
        config=saved.config,
        tokenizer=tmp_path / "tok",
        architecture=saved.architecture,
        labels=saved.labels,
    )
    stored, written = (load_file(tmp_path / name / "model.safetensors") for name in ("m", "again"))
    assert {GPT2_FAMILY._full_name(name) for name in stored} == set(written)
    assert all(torch.equal(tensor, written[GPT2_FAMILY._full_name(name)]) for name, tensor in stored.items())
    again, report = type(theirs).from_pretrained(tmp_path / "again", output_loading_info=True)
    assert not any(report.values()), report
    same = ("n_inner", "activation_function", "layer_norm_epsilon", "embd_pdrop", "resid_pdrop", "attn_pdrop", "n_head")
    assert all(getattr(again.config, name) == getattr(theirs.config, name) for name in same)


def _loss(kind: str, output: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
    """Return a loss of the outputs; for a language model that of transformers."""
    if kind == GPT2_ARCHITECTURE:
        is_followed = torch.zeros_like(mask)
        is_followed[:, :-1] = mask[:, 1:]
        return F.cross_entropy(output[is_followed[mask]], ids[:, 1:][mask[:, 1:]])
    return output.square().sum() / 100


def _compare_gradients(kind: str, ours: nn.Module, theirs: Any) -> float:
    """Compare the gradients of all parameters; return the largest difference relative to the norm of all gradients."""
    mine = GPT2_FAMILY.weights_to_foreign(
        {name: part.grad for name, part in ours.named_parameters() if part.grad is not None}, CLASSES[kind]
    )
    named = {GPT2_FAMILY._full_name(name): part.grad for name, part in theirs.named_parameters()}
    assert set(mine) == set(named)
    # What is added to all scores of a softmax (a key's bias) has the gradient 0: only rounding is left.
    norm = math.hypot(*(float(part.norm()) for part in mine.values()))
    differences = {name: float((part - named[name]).norm()) for name, part in mine.items()}
    for name, difference in differences.items():
        assert difference <= 1e-4 * float(named[name].norm()) + 1e-6 * norm, name
    return max(differences.values()) / norm


@pytest.mark.parametrize("kind", CLASSES)
def test_import_keeps_every_bit(tmp_path: Path, kind: str) -> None:
    """The end of a text is the padding where a published GPT-2 names none; an old file's causal mask is left out."""
    size = write_gpt2_tokenizer(tmp_path / "m")
    theirs = publish_gpt2(tmp_path / "m", kind, vocab_size=size, eos_token_id=size - 1, num_labels=3)
    report = import_model(str(tmp_path / "m"), tmp_path / "imported")
    assert report["architecture"] == CLASSES[kind]
    saved = open_model(str(tmp_path / "imported"))
    assert isinstance(saved.config, GPT2Config)
    assert saved.config.pad_id == saved.config.end_id == size - 1
    again, lost = type(theirs).from_pretrained(tmp_path / "imported", output_loading_info=True)
    assert not any(lost.values()), lost
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name
    assert again.config.eos_token_id == size - 1
    constant = {"h.0.attn.bias": torch.ones(1, 1, 40, 40), "transformer.h.1.attn.masked_bias": torch.tensor(-1e4)}
    assert not GPT2_FAMILY.weights_from_foreign(constant, "old")


def test_the_original_shape_has_the_published_number_of_parameters() -> None:
    from transformers import GPT2Config as Theirs
    from transformers import GPT2LMHeadModel

    entries = json.loads(Theirs().to_json_string(use_diff=False))
    described = GPT2_FAMILY.config_from_json(entries, Path("config.json"))
    with torch.device("meta"):
        model, theirs = build_backbone(described.config), GPT2LMHeadModel(Theirs())
    assert sum(part.numel() for part in model.parameters()) == 124_439_808
    assert sum(part.numel() for part in theirs.parameters()) == 124_439_808
    assert described.config.max_positions == 1024
