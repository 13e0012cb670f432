"""Every BERT class of transformers and ours on random weights: all states, attention, logits, loss, gradients."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bertwright.errors import InputError
from bertwright.model.bert import ARCHITECTURES, Bert, open_architecture
from bertwright.model.families.bert import BERT_FAMILY
from bertwright.model.folder import open_model
from tests.support.parity import BERT_CLASSES, assert_close, padded_batch

transformers = pytest.importorskip("transformers", reason="the oracle; it is in the dev extra")

SHAPES = (
    {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 1, "intermediate_size": 24},
    {"num_hidden_layers": 3, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 80},
    {
        "num_hidden_layers": 2,
        "hidden_size": 48,
        "num_attention_heads": 6,
        "intermediate_size": 48,
        "hidden_act": "gelu_new",
    },
)
LABELS = {"BertForSequenceClassification": 3, "BertForTokenClassification": 5}


def publish_architecture(folder: Path, tokenizer: Path, kind: str, **shape: Any) -> Any:
    """A model of random weights as transformers saves it, with a tokenizer beside it."""
    torch.manual_seed(3)
    size = len((tokenizer / "vocab.txt").read_text("utf-8").splitlines())
    labels = {"num_labels": LABELS[kind]} if kind in LABELS else {}
    settings_of = {"vocab_size": size, "max_position_embeddings": 40, "initializer_range": 0.2, **labels, **shape}
    settings = transformers.BertConfig(**settings_of, attn_implementation="eager")
    model = getattr(transformers, kind)(settings).eval()
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if name.endswith("bias") or "LayerNorm" in name:  # what transformers starts at 0 or 1 would hide a mistake
                tensor.add_(torch.randn_like(tensor) * 0.1)
    model.save_pretrained(folder)
    for file in tokenizer.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return model


def targets(kind: str, ids: Tensor, mask: Tensor) -> dict[str, Tensor]:
    """Return the labels from which transformers computes a loss."""
    draw = torch.Generator().manual_seed(5)
    rows = ids.shape[0]
    tokens = ids.masked_fill(~(mask & (torch.rand(ids.shape, generator=draw) < 0.4)), -100)
    pair = torch.randint(2, (rows,), generator=draw)
    match kind:
        case "BertForPreTraining":
            return {"labels": tokens, "next_sentence_label": pair}
        case "BertForMaskedLM":
            return {"labels": tokens}
        case "ElectraForPreTraining":
            return {"labels": (ids % 3 == 0).long().masked_fill(~mask, -100)}
        case "BertForTokenClassification":
            return {"labels": (ids % LABELS[kind]).masked_fill(~mask, -100)}
        case "BertForQuestionAnswering":
            return {"start_positions": pair, "end_positions": pair + 1}
        case "BertForMultipleChoice" | "BertForNextSentencePrediction" | "BertForSequenceClassification":
            return {"labels": pair}
        case _:
            return {}


def loss_of(kind: str, outputs: dict[str, Tensor], wanted: dict[str, Tensor]) -> Tensor:
    """Our loss of the same targets: sums divided once, except for start and end, which are averaged (paper §4)."""
    if kind == "BertForPreTraining":
        masked = F.cross_entropy(outputs["prediction_logits"].flatten(0, 1), wanted["labels"].flatten())
        return masked + F.cross_entropy(outputs["seq_relationship_logits"], wanted["next_sentence_label"])
    if kind == "BertForQuestionAnswering":
        start = F.cross_entropy(outputs["start_logits"], wanted["start_positions"])
        return (start + F.cross_entropy(outputs["end_logits"], wanted["end_positions"])) / 2
    if kind == "BertModel":
        return outputs["last_hidden_state"].square().sum() / 100 + outputs["pooler_output"].sum()
    logits = outputs["logits"]
    if kind == "ElectraForPreTraining":
        real = wanted["labels"] >= 0
        return F.binary_cross_entropy_with_logits(logits[real], wanted["labels"][real].float())
    return F.cross_entropy(logits.flatten(0, -2), wanted["labels"].flatten())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", BERT_CLASSES)
def test_every_number_agrees(tmp_path: Path, own_tokenizer: Path, kind: str, shape: dict[str, Any]) -> None:
    """Outputs, states, attention and loss within 1e-5; every parameter's gradient within 1e-4 of its size."""
    theirs = publish_architecture(tmp_path / "m", own_tokenizer, kind, **shape)
    saved = open_model(str(tmp_path / "m"))
    assert saved.architecture == kind
    ours = open_architecture(saved)
    ids, segments, mask = padded_batch(
        saved.config.vocab_size, rows=(2, 3) if kind == "BertForMultipleChoice" else (4,)
    )
    wanted = targets(kind, ids, mask)
    answer = theirs(
        input_ids=ids,
        token_type_ids=segments,
        attention_mask=mask.long(),
        output_hidden_states=True,
        output_attentions=True,
        **wanted,
    )
    outputs = ours(ids, segments, mask)
    assert tuple(outputs) == ARCHITECTURES[kind].outputs
    for name, values in outputs.items():
        assert values.shape == answer[name].shape
        per_token = values.shape[:2] == mask.shape and values.ndim > 2
        assert_close(values[mask], answer[name][mask]) if per_token else assert_close(values, answer[name])
    flat = [part.flatten(0, -2) for part in (ids, segments, mask)]
    states = ours.encoder(*flat, all_hidden=True).hidden
    assert len(states) == len(answer.hidden_states) == saved.config.layers + 1
    for mine, other in zip(states, answer.hidden_states, strict=True):
        assert_close(mine[flat[2]], other[flat[2]])
    for layer, state, other in zip(ours.encoder.layers, states[:-1], answer.attentions, strict=True):
        real = flat[2][:, None, :, None].expand_as(other)
        assert_close(layer.attention.probabilities(state, flat[2][:, None, None, :])[real], other[real])
    loss = loss_of(kind, outputs, wanted)
    expected = answer.loss if wanted else loss_of(kind, answer, wanted)
    assert_close(loss, expected)
    loss.backward()
    expected.backward()
    gradients = BERT_FAMILY.weights_to_foreign({name: gradient(part) for name, part in ours.named_parameters()}, kind)
    named = {
        name if name.startswith(("bert.", "cls.", "classifier", "qa_")) else f"bert.{name}": tensor
        for name, tensor in theirs.named_parameters()
    }
    named.pop("cls.predictions.decoder.weight", None)
    assert set(gradients) == {name.replace("predictions.decoder.bias", "predictions.bias") for name in named}
    # What is added to all logits of a softmax (a key's bias, a choice's) has the gradient 0: only rounding is left.
    rounding = 1e-6 * float(torch.stack([part.norm() for part in gradients.values()]).norm())
    for name, mine in gradients.items():
        other = gradient(named[name] if name in named else named["cls.predictions.decoder.bias"])
        if name == "bert.embeddings.word_embeddings.weight":
            mine, other = mine[1:], other[1:]  # transformers gives the padding piece's embedding no gradient
        assert float((mine - other).norm()) <= 1e-4 * float(other.norm()) + rounding, name


def gradient(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def test_other_architectures_are_refused(tmp_path: Path, own_tokenizer: Path) -> None:
    publish_architecture(tmp_path / "m", own_tokenizer, "BertModel", **SHAPES[0])
    with pytest.raises(InputError, match="architecture 'BertLMHeadModel' is not known; allowed are BertModel"):
        Bert(open_model(str(tmp_path / "m")).config, "BertLMHeadModel")
