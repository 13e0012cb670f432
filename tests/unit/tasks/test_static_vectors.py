"""A table of one vector a piece: a plain mean, and model2vec and sentence-transformers on the same folder."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer

from bertwright.errors import InputError
from bertwright.model.folder import open_model
from bertwright.tasks import static_vectors
from bertwright.tasks.sentence_vectors import SentenceEncoder
from bertwright.tasks.static_vectors import StaticVectors, is_static, open_static, open_vectors
from bertwright.text.base_tokenizer import BaseTokenizer
from bertwright.text.bpe import train_bpe
from bertwright.text.open_tokenizer import open_tokenizer_folder
from tests.support.encoders import write_encoder
from tests.support.texts import own_lines

model2vec = pytest.importorskip("model2vec", reason="the oracle; it is in the dev extra")

TEXTS = [
    "The house stood at the end of the lane.",
    "",
    "[SEP] is a word here, as [MASK] is.",
    "Unknown: 한국어 ☃ beside known words",
    "☃",
    "the lane " * 300,
]


def random_table(tokenizer: BaseTokenizer, width: int = 12) -> torch.Tensor:
    table = torch.randn(tokenizer.vocab_size, width, generator=torch.Generator().manual_seed(0))
    table[[*tokenizer.special_ids, tokenizer.unk_id]] = 0.0
    return table


@pytest.fixture(params=["wordpiece", "bpe"])
def static_folder(request: pytest.FixtureRequest, tmp_path: Path, own_tokenizer: Path) -> Path:
    """A folder with a random table, for either kind of tokenizer."""
    is_bpe = request.param == "bpe"
    tokenizer = train_bpe(own_lines(), merges=100) if is_bpe else open_tokenizer_folder(own_tokenizer)
    (tmp_path / "static").mkdir()
    StaticVectors(random_table(tokenizer), tokenizer).save(tmp_path / "static", {})
    return tmp_path / "static"


def test_the_vector_is_the_mean_of_the_known_pieces(own_tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(static_vectors, "_TEXTS", 4)
    tokenizer = open_tokenizer_folder(own_tokenizer)
    table = random_table(tokenizer)
    expected = np.zeros((len(TEXTS), 12))
    for row, text in enumerate(TEXTS):
        ids = [id for id in tokenizer.ids([text])[0] if id != tokenizer.unk_id]
        for id in ids:
            expected[row] += table[id].numpy() / len(ids)
    plain = StaticVectors(table, tokenizer, normalize=False)
    np.testing.assert_allclose(plain.vectors(TEXTS), expected, atol=1e-4)
    lengths = np.maximum(np.linalg.norm(expected, axis=1, keepdims=True), 1e-9)
    unit = StaticVectors(table, tokenizer)
    np.testing.assert_allclose(unit.vectors(TEXTS), expected / lengths, atol=1e-5)
    np.testing.assert_array_equal(unit.vectors(TEXTS, width=5), unit.vectors(TEXTS)[:, :5])
    assert not unit.vectors(["", "☃"]).any()
    assert unit.vectors([]).shape == (0, 12)


def test_model2vec_and_sentence_transformers_open_the_folder(static_folder: Path) -> None:
    ours = open_static(str(static_folder)).vectors(TEXTS)
    theirs = model2vec.StaticModel.from_pretrained(static_folder)
    assert (theirs.dim, theirs.normalize, theirs.max_length) == (12, True, None)
    np.testing.assert_allclose(ours, theirs.encode(TEXTS), atol=1e-5)
    others = SentenceTransformer(str(static_folder), device="cpu")
    np.testing.assert_allclose(ours, others.encode(TEXTS), atol=1e-5)


def test_a_compressed_table_of_model2vec_is_read(own_tokenizer: Path, tmp_path: Path) -> None:
    import tokenizers

    tokenizer = open_tokenizer_folder(own_tokenizer)
    random = np.random.default_rng(1)
    theirs = model2vec.StaticModel(
        vectors=random.normal(size=(30, 8)).astype(np.float16),
        tokenizer=tokenizers.Tokenizer.from_file(str(own_tokenizer / "tokenizer.json")),
        config={"model_type": "model2vec"},
        normalize=False,
        weights=random.uniform(size=tokenizer.vocab_size),
        token_mapping=random.integers(0, 30, tokenizer.vocab_size),
    )
    theirs.save_pretrained(tmp_path / "small")
    texts = TEXTS[:1] + TEXTS[3:4]
    np.testing.assert_allclose(open_static(str(tmp_path / "small")).vectors(texts), theirs.encode(texts), atol=2e-3)


def test_either_kind_of_folder_is_opened_for_vectors(static_folder: Path, own_tokenizer: Path, tmp_path: Path) -> None:
    encoder = write_encoder(tmp_path / "encoder", own_tokenizer)
    assert (is_static(str(static_folder)), is_static(encoder), is_static("no/such/folder")) == (True, False, False)
    assert isinstance(open_vectors(str(static_folder), "auto", "cpu"), StaticVectors)
    assert isinstance(open_vectors(encoder, None, "cpu"), SentenceEncoder)
    options: tuple[Any, ...] = (("int8", "cpu"), (None, "cuda"))
    for precision, device in options:
        with pytest.raises(InputError, match="a static table is computed on the processors in fp32"):
            open_vectors(str(static_folder), precision, device)
    with pytest.raises(InputError, match=r"config.json: expected an encoder, got a table of static vectors"):
        open_model(str(static_folder))


def test_a_table_that_does_not_fit_is_refused(static_folder: Path) -> None:
    weights = static_folder / "model.safetensors"
    table = load_file(weights)["embeddings"]
    weights.with_name("model.safetensors.sha256").unlink()
    pieces = len(table)
    for tensors, message in (
        ({"embeddings": table[1:]}, rf"expected a vector for each of the {pieces} pieces .*\({pieces - 1}, 12\)"),
        ({"other": table}, "expected the tensor embeddings, got other"),
        ({"embeddings": table / 0}, "infinite values or values that are no numbers"),
        ({"embeddings": torch.tensor(1.0)}, r"embeddings: expected a table of rows and columns, got the shape \[\]"),
        ({"embeddings": table[:, :0]}, rf"got a table of the shape \({pieces}, 0\)"),
        (
            {"embeddings": table, "weights": table[1:, 0]},
            rf"weights: expected a number for each of the {pieces} pieces",
        ),
        ({"embeddings": table, "weights": torch.ones(1)}, r"weights: expected a number for each .* got \[1\]"),
        ({"embeddings": table, "mapping": torch.full((pieces,), pieces)}, rf"from 0 to {pieces - 1}, got {pieces}"),
        ({"embeddings": table, "mapping": torch.full((pieces,), -1)}, r"mapping: expected rows from 0 .* got -1"),
        (
            {"embeddings": table, "mapping": torch.full((pieces,), 2.7)},
            "mapping: expected a whole number for each piece",
        ),
        ({"embeddings": table, "mapping": torch.zeros(pieces, 1).int()}, "mapping: expected a whole number for each"),
    ):
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, weights)
        with pytest.raises(InputError, match=message):
            open_static(str(static_folder))


@pytest.mark.parametrize("value", ["false", 0, None])
def test_normalize_must_be_true_or_false(value: Any, static_folder: Path) -> None:
    path = static_folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), "normalize": value}), "utf-8")
    with pytest.raises(InputError, match=r"config.json: normalize: expected true or false, got"):
        open_static(str(static_folder))


def test_a_wrong_width_and_half_of_a_character_are_refused(own_tokenizer: Path) -> None:
    tokenizer = open_tokenizer_folder(own_tokenizer)
    vectors = StaticVectors(random_table(tokenizer), tokenizer)
    for width in (0, 13, 99):
        with pytest.raises(InputError, match=rf"width {width}: expected 1 to 12, the size of this model's vectors"):
            vectors.vectors(["a"], width=width)
    with pytest.raises(InputError, match=r"text 8 holds half of a character \(position 2\)"):
        vectors.vectors(["a", "b \ud800"], first=7)


def test_a_changed_table_is_refused(static_folder: Path) -> None:
    weights = static_folder / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    with pytest.raises(InputError, match="expected the sha256"):
        open_static(str(static_folder))


def test_no_token_is_found_in_a_text(static_folder: Path) -> None:
    described = json.loads((static_folder / "tokenizer.json").read_text("utf-8"))
    assert described["added_tokens"] == []
