"""Models of random weights of BERT's successors, as transformers saves them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from bertwright.model.bert import ARCHITECTURES
from bertwright.model.families import families
from bertwright.model.families.tables import EncoderFamily

transformers = pytest.importorskip("transformers", reason="the oracle; it is in the dev extra")

LABELS = {"BertForSequenceClassification": 3, "BertForTokenClassification": 5}
"""Numbers of labels of the classes that have labels."""


@dataclass(frozen=True)
class Published:
    """A family of the package, the configuration class of transformers, and the entries of a small model."""

    family: str
    config: str
    entries: dict[str, Any]


_USUAL = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 80}
_SHARED = {**_USUAL, "num_hidden_layers": 4, "num_hidden_groups": 2, "embedding_size": 16, "hidden_act": "gelu"}
_MODERN = {**_USUAL, "local_attention": 4, "pad_token_id": 0, "num_hidden_layers": 4}
"""A window of 4 reaches two tokens to each side; rows have up to 17."""
_BIASED = dict.fromkeys(("norm_bias", "attention_bias", "mlp_bias", "classifier_bias"), True)
FAMILIES = (
    Published("distilbert", "DistilBertConfig", {"dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 80}),
    Published("electra", "ElectraConfig", {**_USUAL, "embedding_size": 12, "hidden_act": "gelu_new"}),
    Published("electra", "ElectraConfig", {**_USUAL, "embedding_size": 32}),
    Published("albert", "AlbertConfig", _SHARED),
    Published("roberta", "RobertaConfig", {**_USUAL, "type_vocab_size": 1, "hidden_act": "gelu_new"}),
    Published("modernbert", "ModernBertConfig", _MODERN),
    Published(
        "modernbert",
        "ModernBertConfig",
        {
            **_MODERN,
            **_BIASED,
            "decoder_bias": False,
            "classifier_pooling": "mean",
            "classifier_activation": "tanh",
            "hidden_activation": "gelu_new",
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"],
            "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 500.0}},
        },
    ),
)


def family_named(name: str) -> EncoderFamily[Any]:
    """Return a family of encoders."""
    family = families()[name]
    assert isinstance(family, EncoderFamily)
    return family


def classes() -> list[Any]:
    """Return each family with each of its sets of heads, for parametrize."""
    return [
        pytest.param(published, kind, id=f"{published.family}-{kind}")
        for published in FAMILIES
        for kind in family_named(published.family).classes
        if kind in ARCHITECTURES
    ]


def publish(folder: Path, published: Published, kind: str, tokenizer: Path) -> Any:
    """Write a model as transformers saves it, with the files of a tokenizer beside it; return the model."""
    torch.manual_seed(3)
    size = len((tokenizer / "vocab.txt").read_text("utf-8").splitlines())
    labels = {"num_labels": LABELS[kind]} if kind in LABELS else {}
    entries = {"vocab_size": size, "max_position_embeddings": 40, "initializer_range": 0.2, **labels}
    settings = getattr(transformers, published.config)(**{**entries, **published.entries})
    settings._attn_implementation = "eager"
    model = getattr(transformers, family_named(published.family).classes[kind])(settings).eval()
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if name.endswith("bias") or "norm" in name.lower():  # values of 0 or 1 would hide a mistake
                tensor.add_(torch.randn_like(tensor) * 0.1)
    model.save_pretrained(folder)
    for file in tokenizer.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return model
