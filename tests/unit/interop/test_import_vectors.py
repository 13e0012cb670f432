"""Import of folders of sentence-transformers: vectors are the same, or the folder is refused with the reason."""

import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer

from bertwright.errors import InputError
from bertwright.interop.import_model import import_model
from bertwright.model.vector_settings import DenseLayer, VectorSettings
from bertwright.serving.predictor import load
from bertwright.sklearn import BertVectorizer
from tests.support.folders import update_json
from tests.support.vectors import write_vector_model

TEXTS = ["The house stood at the end of the lane.", "Rain.", "", "a b c d e f g h i j k l m n o p q r s t u v w x y z"]
SETTINGS = VectorSettings(
    pooling=("cls", "mean"),
    dense=(DenseLayer(inputs=96, outputs=24),),
    normalize=True,
    prompts={"query": "a question: "},
    default_prompt="query",
    include_prompt=False,
    max_length=20,
)


@pytest.fixture
def theirs(tmp_path: Path, own_tokenizer: Path) -> Path:
    """A folder that sentence-transformers has written."""
    write_vector_model(tmp_path / "ours", own_tokenizer, SETTINGS)
    SentenceTransformer(str(tmp_path / "ours"), device="cpu").save(str(tmp_path / "theirs"))
    return tmp_path / "theirs"


@pytest.mark.parametrize("pickled", [False, True])
def test_an_imported_folder_has_the_vectors_of_sentence_transformers(
    theirs: Path, tmp_path: Path, *, pickled: bool
) -> None:
    if pickled:
        weights = theirs / "2_Dense" / "model.safetensors"
        torch.save(load_file(weights), theirs / "2_Dense" / "pytorch_model.bin")
        weights.unlink()
    expected = SentenceTransformer(str(theirs), device="cpu").encode(TEXTS)
    report = import_model(str(theirs), tmp_path / "imported")
    assert report["vectors"] == "cls and mean, Tanh to 24, normalised, 24 components, 20 tokens, prompts: query"
    model = load(tmp_path / "imported", precision="fp32")
    with pytest.warns(UserWarning, match="20 tokens"):
        vectors = model.vectors(TEXTS)
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    again = SentenceTransformer(str(tmp_path / "imported"), device="cpu")
    np.testing.assert_allclose(again.encode(TEXTS), expected, atol=1e-5)


def test_a_vectorizer_computes_what_the_folder_describes(theirs: Path, tmp_path: Path) -> None:
    expected = SentenceTransformer(str(theirs), device="cpu").encode(TEXTS)
    import_model(str(theirs), tmp_path / "imported")
    vectorizer = BertVectorizer(tmp_path / "imported", precision="fp32").fit(TEXTS)
    assert vectorizer.get_feature_names_out().shape == (24,)
    for same in (vectorizer, pickle.loads(pickle.dumps(vectorizer))):
        with pytest.warns(UserWarning, match="2 of 4 texts exceed 20 tokens"):
            np.testing.assert_allclose(same.transform(TEXTS), expected, atol=1e-5)
    with pytest.warns(UserWarning, match="2 of 4 texts exceed 20 tokens"):  # the folder's limit holds for every pooling
        assert BertVectorizer(tmp_path / "imported", pool="mean").fit_transform(TEXTS).shape == (4, 48)


def test_an_explicit_pool_takes_the_place_of_the_settings(theirs: Path, tmp_path: Path) -> None:
    import_model(str(theirs), tmp_path / "imported")
    model = load(tmp_path / "imported", precision="fp32")
    assert model.vectors(TEXTS[1:3]).shape == (2, 24)
    assert model.vectors([]).shape == (0, 24)
    assert model.vectors(TEXTS[1:3], pool="mean").shape == model.vectors(TEXTS[1:3], layer=1).shape == (2, 48)
    np.testing.assert_allclose(model.vectors("Rain.", layer=2), model.vectors("Rain."), atol=1e-6)


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        ("2_Dense/config.json", {"in_features": 48}, r"the first dense layer has 48 inputs; expected 96"),
        ("2_Dense/config.json", {"out_features": 25}, r"2_Dense: expected the tensors .*\(25, 96\).*got .*\(24, 96\)"),
        ("sentence_bert_config.json", {"transformer_task": "fill-mask"}, "transformer_task is 'fill-mask'"),
        ("config_sentence_transformers.json", {"truncate_dim": 25}, r"Matryoshka width 25: expected 1 to 24"),
    ],
)
def test_a_folder_that_cannot_be_computed_is_refused(
    file: str, changes: dict[str, Any], message: str, theirs: Path, tmp_path: Path
) -> None:
    update_json(theirs / file, **changes)
    with pytest.raises(InputError, match=message):
        import_model(str(theirs), tmp_path / "imported")
    assert not (tmp_path / "imported").exists()


def test_missing_dense_weights_are_named(theirs: Path, tmp_path: Path) -> None:
    shutil.move(theirs / "2_Dense" / "model.safetensors", tmp_path)
    with pytest.raises(InputError, match=r"2_Dense: holds no weights: expected model.safetensors"):
        import_model(str(theirs), tmp_path / "imported")


def test_an_encoder_of_vectors_needs_no_pooler(tmp_path: Path, own_tokenizer: Path) -> None:
    settings = VectorSettings(piece_weights=tuple(0.01 + (id * 0.37 % 1) for id in range(500)))
    write_vector_model(tmp_path / "ours", own_tokenizer, settings)
    SentenceTransformer(str(tmp_path / "ours"), device="cpu").save(str(tmp_path / "theirs"))
    weights = tmp_path / "theirs" / "model.safetensors"
    save_file({name: tensor for name, tensor in load_file(weights).items() if "pooler" not in name}, weights)
    report = import_model(str(tmp_path / "theirs"), tmp_path / "imported")
    assert report["vectors"] == "mean with weights of pieces, 48 components, 64 tokens"
    vectors = load(tmp_path / "imported", precision="fp32").vectors(TEXTS[:3])
    np.testing.assert_allclose(vectors, load(tmp_path / "ours", precision="fp32").vectors(TEXTS[:3]), atol=1e-5)
