"""A folder of vectors as text-embeddings-inference reads it: the files, entries and tensors that the program needs.

The names are those of its source: `router/src/lib.rs` for the files beside the weights, `backends/candle/src/models`
for the weights of BERT and of dense layers. Entries without a default there must be present, and have that type.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from bertwright.model.vector_settings import DenseLayer, VectorSettings
from tests.support.encoders import SHAPE
from tests.support.vectors import write_vector_model

ROUTER = {"architectures": list, "model_type": str, "max_position_embeddings": int}
MODEL = {
    "vocab_size": int,
    "hidden_size": int,
    "num_hidden_layers": int,
    "num_attention_heads": int,
    "intermediate_size": int,
    "hidden_act": str,
    "hidden_dropout_prob": float,
    "type_vocab_size": int,
    "initializer_range": float,
    "layer_norm_eps": float,
    "pad_token_id": int,
}
POOLING = {"pooling_mode_cls_token": bool, "pooling_mode_mean_tokens": bool, "pooling_mode_lasttoken": bool}
DENSE = {"in_features": int, "out_features": int, "bias": bool, "activation_function": str}
LAYER = (
    *(f"attention.self.{name}" for name in ("query", "key", "value")),
    "attention.output.dense",
    "attention.output.LayerNorm",
    "intermediate.dense",
    "output.dense",
    "output.LayerNorm",
)
EMBEDDINGS = ("word_embeddings", "token_type_embeddings", "position_embeddings")


def described(path: Path, entries: dict[str, type]) -> dict[str, Any]:
    """Return the content of a file of JSON that has these entries with these types."""
    content: dict[str, Any] = json.loads(path.read_text("utf-8"))
    assert {name: type(content.get(name)) for name in entries} == entries
    return content


@pytest.mark.parametrize("max_length", [None, 24])
@pytest.mark.parametrize("pooling", ["mean", "cls", "lasttoken"])
def test_the_files_have_the_entries_that_the_server_needs(
    max_length: int | None, pooling: Any, tmp_path: Path, own_tokenizer: Path
) -> None:
    folder = tmp_path / "model"
    prompts = {"query": "a question: "}
    settings = VectorSettings(pooling=(pooling,), normalize=True, prompts=prompts, max_length=max_length)
    write_vector_model(folder, own_tokenizer, settings)
    config = described(folder / "config.json", ROUTER | MODEL)
    assert config["model_type"] == "bert"
    assert config.get("position_embedding_type", "absolute") == "absolute"
    assert config["hidden_act"] in ("gelu", "relu")
    length = described(folder / "sentence_bert_config.json", {"max_seq_length": int})["max_seq_length"]
    assert length == (max_length or SHAPE["max_positions"])
    modes = described(folder / "1_Pooling" / "config.json", POOLING)
    assert [name for name in POOLING if modes[name]] == [
        {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token"}.get(pooling, "pooling_mode_lasttoken")
    ]
    assert described(folder / "config_sentence_transformers.json", {"prompts": dict})["prompts"] == prompts
    modules = json.loads((folder / "modules.json").read_text("utf-8"))
    assert [(entry["path"], entry["type"].rpartition(".")[2]) for entry in modules] == [
        ("", "Transformer"),
        ("1_Pooling", "Pooling"),
        ("2_Normalize", "Normalize"),
    ]
    assert (folder / "tokenizer.json").is_file()


def test_the_tensors_have_the_names_that_the_server_looks_for(tmp_path: Path, own_tokenizer: Path) -> None:
    """The server tries names without a prefix, and then those with `bert.`, which are ours."""
    write_vector_model(tmp_path / "model", own_tokenizer, VectorSettings())
    with safe_open(tmp_path / "model" / "model.safetensors", "pt") as stored:
        names = set(stored.keys())
    tables = {f"bert.embeddings.{name}.weight" for name in EMBEDDINGS}
    norm = {f"bert.embeddings.LayerNorm.{part}" for part in ("weight", "bias")}
    layers = {
        f"bert.encoder.layer.{layer}.{name}.{part}"
        for layer in range(SHAPE["layers"])
        for name in LAYER
        for part in ("weight", "bias")
    }
    assert tables | norm | layers <= names
    assert not any(name.startswith(("embeddings.", "encoder.")) for name in names)  # else these alone would be read


@pytest.mark.parametrize(
    ("activation", "spelling"),
    [("Tanh", "torch.nn.modules.activation.Tanh"), ("Identity", "torch.nn.modules.linear.Identity")],
)
def test_a_dense_layer_has_the_spelling_of_the_server(
    activation: Any, spelling: str, tmp_path: Path, own_tokenizer: Path
) -> None:
    layer = DenseLayer(inputs=SHAPE["hidden"], outputs=8, activation=activation)
    write_vector_model(tmp_path / "model", own_tokenizer, VectorSettings(dense=(layer,)))
    dense = tmp_path / "model" / "2_Dense"
    assert described(dense / "config.json", DENSE)["activation_function"] == spelling
    with safe_open(dense / "model.safetensors", "pt") as stored:
        assert sorted(stored.keys()) == ["linear.bias", "linear.weight"]
