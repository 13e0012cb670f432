"""Settings of vectors in a model folder: sentence-transformers opens what is written, and what it writes is read."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from bertwright.errors import InputError
from bertwright.model.folder import open_model
from bertwright.model.vector_head import open_vector_head
from bertwright.model.vector_settings import DenseLayer, VectorSettings, read_vector_settings
from bertwright.tasks.binding import open_tokenizer
from bertwright.tasks.feature_based import frozen_encoder
from bertwright.tasks.sentence_vectors import open_sentence_encoder
from tests.support.encoders import SHAPE, write_encoder
from tests.support.folders import contents, update_json
from tests.support.vectors import write_vector_model

FULL = VectorSettings(
    pooling=("mean", "cls"),
    dense=(DenseLayer(inputs=96, outputs=40, activation="ReLU"), DenseLayer(inputs=40, outputs=32)),
    normalize=True,
    prompts={"query": "a question: ", "document": ""},
    default_prompt="query",
    max_length=24,
    similarity="dot",
    widths=(8, 16),
    width=16,
)
WEIGHTED = VectorSettings(
    piece_weights=tuple(0.01 + (id * 0.37 % 1) for id in range(500)),
    dense=(DenseLayer(inputs=48, outputs=32),),
    normalize=True,
    prompts={"query": "to be: "},
    default_prompt="query",
)
"""A weight for each piece of the tokenizer."""
TEXTS = ["The house stood at the end of the lane.", "Rain.", "a b c d e f g h i j k l m n o p q r s t u v w x y z"]


def vectors_of(folder: Path, texts: list[str], prompt: str) -> Any:
    """Return the vectors [N, W] of texts, one at a time, cut as the settings say."""
    saved = open_model(str(folder))
    head = open_vector_head(folder, saved.config.hidden)
    assert head is not None
    tokenizer, encoder = open_tokenizer(saved), frozen_encoder(saved)
    length = head.settings.max_length or saved.config.max_positions
    vectors = []
    for text in texts:
        ids = [tokenizer.begin_id, *tokenizer.ids([prompt + text])[0][: length - 2], tokenizer.end_id]
        row = torch.tensor([ids])
        with torch.inference_mode():
            states = encoder(
                row, torch.zeros_like(row), torch.ones_like(row, dtype=torch.bool), all_hidden=True
            ).hidden[-1]
            skipped = 1 + len(tokenizer.ids([prompt])[0]) if prompt else 0
            vectors.append(head(states, torch.ones_like(row), row, prompt=skipped)[0].numpy())
    return np.stack(vectors)


@pytest.mark.parametrize(
    "settings",
    [
        VectorSettings(),
        FULL,
        FULL.model_copy(update={"pooling": ("cls", "mean"), "include_prompt": False}),
        VectorSettings(pooling=("weightedmean",), include_prompt=False, prompts={"q": "to be: "}, default_prompt="q"),
        WEIGHTED,
    ],
)
def test_what_is_written_is_read_and_opened_by_sentence_transformers(
    settings: VectorSettings, tmp_path: Path, own_tokenizer: Path
) -> None:
    folder = tmp_path / "model"
    write_vector_model(folder, own_tokenizer, settings)
    length = settings.max_length or SHAPE["max_positions"]  # without one, the length of the tokenizer is read
    assert read_vector_settings(folder) == settings.model_copy(update={"max_length": length})
    theirs = SentenceTransformer(str(folder), device="cpu")
    assert theirs.max_seq_length == length
    prompt = settings.prompts[settings.default_prompt] if settings.default_prompt else ""
    np.testing.assert_allclose(vectors_of(folder, TEXTS, prompt), theirs.encode(TEXTS), atol=1e-5)


def test_what_sentence_transformers_writes_is_read(tmp_path: Path, own_tokenizer: Path) -> None:
    write_vector_model(tmp_path / "model", own_tokenizer, FULL)
    theirs = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    theirs.save(str(tmp_path / "theirs"))
    settings = read_vector_settings(tmp_path / "theirs")
    assert settings == FULL.model_copy(update={"widths": ()})
    np.testing.assert_allclose(vectors_of(tmp_path / "theirs", TEXTS, "a question: "), theirs.encode(TEXTS), atol=1e-5)


def test_padding_and_other_texts_change_no_weighted_vector(tmp_path: Path, own_tokenizer: Path) -> None:
    write_vector_model(tmp_path / "model", own_tokenizer, WEIGHTED)
    encoder = open_sentence_encoder(str(tmp_path / "model"), "fp32", "cpu")
    together = encoder.vectors(TEXTS)
    np.testing.assert_allclose(together, np.concatenate([encoder.vectors([text]) for text in TEXTS]), atol=1e-5)
    np.testing.assert_allclose(together, vectors_of(tmp_path / "model", TEXTS, "to be: "), atol=1e-5)


def test_weights_of_other_vocabularies_and_poolings_are_refused(tmp_path: Path, own_tokenizer: Path) -> None:
    few = WEIGHTED.model_copy(update={"piece_weights": (0.5, 0.25)})
    write_vector_model(tmp_path / "model", own_tokenizer, few)
    with pytest.raises(InputError, match=r"has weights for 2 pieces; expected one for each of the [\d,]+ pieces"):
        open_sentence_encoder(str(tmp_path / "model"), "fp32", "cpu")
    with pytest.raises(ValueError, match="piece_weights: expected the pooling mean over all tokens, got cls"):
        VectorSettings(pooling=("cls",), piece_weights=(1.0,))
    config = tmp_path / "model" / "1_WordWeights" / "config.json"
    config.write_text(json.dumps({"vocab": ["The", "a", "zz"], "word_weights": {"the": 0.5, "a": 0.1}}))
    settings = read_vector_settings(tmp_path / "model")
    assert settings is not None
    assert settings.piece_weights == (0.5, 0.1, 1.0)
    for vocabulary in ([], [["a"]], "a"):
        config.write_text(json.dumps({"vocab": vocabulary, "word_weights": {}}))
        with pytest.raises(InputError, match="expected a list vocab of names and an object word_weights"):
            read_vector_settings(tmp_path / "model")


def test_older_spellings_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "old"
    (folder / "1_Pooling").mkdir(parents=True)
    types = ["Transformer", "Pooling", "Normalize"]
    modules = [
        {
            "idx": index,
            "name": str(index),
            "path": f"{index}_{name}" * (index > 0),
            "type": f"sentence_transformers.models.{name}",
        }
        for index, name in enumerate(types)
    ]
    (folder / "modules.json").write_text(json.dumps(modules), "utf-8")
    flags = {"word_embedding_dimension": 4, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(flags), "utf-8")
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 256, "do_lower_case": false}', "utf-8")
    assert read_vector_settings(folder) == VectorSettings(pooling=("cls", "mean"), normalize=True, max_length=256)


def test_a_folder_without_these_files_has_no_settings(tmp_path: Path, own_tokenizer: Path) -> None:
    folder = Path(write_encoder(tmp_path / "model", own_tokenizer))
    assert read_vector_settings(folder) is None
    assert open_vector_head(folder, SHAPE["hidden"]) is None


def test_a_model_replaces_a_folder_with_settings_of_vectors(tmp_path: Path, own_tokenizer: Path) -> None:
    write_vector_model(tmp_path / "model", own_tokenizer, FULL)
    write_encoder(tmp_path / "model", own_tokenizer)
    assert not any("Pooling" in name or "modules" in name for name in contents(tmp_path / "model"))


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        (
            "1_Pooling/config.json",
            {"pooling_mode": "median"},
            "pooling_mode: expected one or more of cls, max, .*median",
        ),
        ("2_Dense/config.json", {"activation_function": "os.system"}, "activation_function: expected one of torch.nn"),
        ("2_Dense/config.json", {"out_features": 0}, r"2_Dense/config.json: in_features.*greater than 0, got 0"),
        ("2_Dense/config.json", {"out_features": 39}, "a layer with 39 outputs is followed by one with 40 inputs"),
        ("2_Dense/config.json", {"use_residual": True}, "use_residual is True; only False is computed here"),
        ("config_sentence_transformers.json", {"default_prompt_name": "x"}, r"name of a prompt \(query, document\)"),
        ("config_sentence_transformers.json", {"truncate_dim": 33}, "Matryoshka width 33: expected 1 to 32"),
        (
            "config_sentence_transformers.json",
            {"prompts": {"query": 3}},
            "prompts.query: Input should be a valid string",
        ),
        ("config_sentence_transformers.json", {"model_type": "SparseEncoder"}, "model_type is 'SparseEncoder'"),
        ("sentence_bert_config.json", {"max_seq_length": -1}, "max_length: Input should be greater than 0, got -1"),
        ("sentence_bert_config.json", {"modality_config": ["text"]}, r"modality_config is \['text'\]; expected"),
        ("sentence_bert_config.json", {"modality_config": {"text": None}}, "an object with an object for text"),
        ("sentence_bert_config.json", {"transformer_task": "fill-mask"}, "transformer_task is 'fill-mask'; only"),
    ],
)
def test_an_unusable_entry_is_refused_with_its_file(
    file: str, changes: dict[str, Any], message: str, tmp_path: Path, own_tokenizer: Path
) -> None:
    folder = tmp_path / "model"
    write_vector_model(folder, own_tokenizer, FULL)
    update_json(folder / file, **changes)
    with pytest.raises(InputError, match=message):
        open_vector_head(folder, SHAPE["hidden"])


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        (["Transformer", "Pooling", "LayerNorm"], "module 2 is sentence_transformers.models.LayerNorm; only"),
        (
            ["Transformer", "Pooling", "Normalize", "Dense"],
            "the modules are Transformer, Pooling, Normalize, Dense; only",
        ),
        (["Transformer"], "the modules are Transformer; only Transformer, WordWeights"),
    ],
)
def test_unknown_modules_are_refused_by_name(modules: list[str], message: str, tmp_path: Path) -> None:
    entries = [{"path": "x", "type": f"sentence_transformers.models.{name}"} for name in modules]
    (tmp_path / "modules.json").write_text(json.dumps(entries), "utf-8")
    with pytest.raises(InputError, match=message):
        read_vector_settings(tmp_path)


def test_dense_weights_of_a_wrong_shape_are_refused(tmp_path: Path, own_tokenizer: Path) -> None:
    folder = tmp_path / "model"
    write_vector_model(folder, own_tokenizer, FULL)
    update_json(folder / "3_Dense" / "config.json", bias=False)
    with pytest.raises(InputError, match=r"3_Dense: expected the tensors .*\(32, 40\).*linear.bias"):
        open_vector_head(folder, SHAPE["hidden"])
