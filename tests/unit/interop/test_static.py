"""export static: vectors of pieces by transformers, components by scikit-learn, weights by their formula."""

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sklearn.decomposition import PCA
from transformers import AutoModel

from bertwright.errors import InputError
from bertwright.interop import static as static_module
from bertwright.interop.static import export_static, principal_components
from bertwright.model.config import EncoderConfig
from bertwright.model.folder import save_model
from bertwright.model.system import system_config
from bertwright.model.vector_settings import VectorSettings
from bertwright.objectives.masked_lm import PretrainingModel
from bertwright.search.evaluate import evaluate_embed
from bertwright.serving.predictor import load
from bertwright.text.open_tokenizer import open_tokenizer_folder
from bertwright.text.wordpiece import train_wordpiece
from tests.support.commands import run_json
from tests.support.encoders import write_encoder
from tests.support.texts import own_lines
from tests.support.vectors import write_vector_model

SPECIAL = 5


def expected_vectors(folder: Path, pieces: int) -> np.ndarray[Any, Any]:
    """The mean of the three states of [CLS] PIECE [SEP], by transformers."""
    model = AutoModel.from_pretrained(str(folder)).eval()
    rows = torch.tensor([[2, piece, 3] for piece in range(SPECIAL, pieces)])
    with torch.inference_mode():
        return np.asarray(model(input_ids=rows).last_hidden_state.mean(1).numpy())


def test_special_tokens_outside_of_the_vocabulary_keep_their_ids(tmp_path: Path) -> None:
    """The tokens of ModernBERT are such: they stand beside the pieces, and no text has them."""
    rust = tokenizers.Tokenizer(tokenizers.models.BPE())
    rust.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    rust.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    rust.train_from_iterator(own_lines(), trainer)
    names = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}
    names |= {"mask_token": "[MASK]"}
    rust.add_special_tokens(list(names.values()))
    ids = [(name, rust.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    frame = {"single": "[CLS] $A [SEP]", "pair": "[CLS] $A [SEP] $B [SEP]"}
    rust.post_processor = tokenizers.processors.TemplateProcessing(**frame, special_tokens=ids)
    (tmp_path / "tok").mkdir()
    rust.save(str(tmp_path / "tok/tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **names}
    (tmp_path / "tok/tokenizer_config.json").write_text(json.dumps(settings))
    config = system_config("modernbert", "1x32x2", rust.get_vocab_size(), max_positions=64)
    assert isinstance(config, EncoderConfig)
    model = PretrainingModel(config, second_sentence="none")
    save_model(tmp_path / "model", model, config=config, tokenizer=tmp_path / "tok", architecture="BertForMaskedLM")
    export_static(str(tmp_path / "model"), tmp_path / "static", width=8)
    table = load(str(tmp_path / "static"))
    text = own_lines()[0]
    assert np.isfinite(table.vectors([text, f"{text} [SEP]"])).all()
    assert "[SEP]" in table.tokenizer.pieces
    ordinary = table.tokenizer.ids(["[SEP]"])[0]
    assert len(ordinary) > 1  # its characters, as any text


@pytest.mark.parametrize("source", ["zipf", "text", "corpus"])
def test_the_table_is_that_of_its_formula(
    source: str, own_tokenizer: Path, own_text: Path, own_corpus: Path, tmp_path: Path
) -> None:
    write_encoder(tmp_path / "model", own_tokenizer)
    counted: dict[str, Any] = {"zipf": {}, "text": {"text": own_text}, "corpus": {"corpus": own_corpus}}[source]
    result = export_static(str(tmp_path / "model"), tmp_path / "static", width=10, **counted)
    tokenizer = open_tokenizer_folder(own_tokenizer)
    vectors = expected_vectors(tmp_path / "model", tokenizer.vocab_size)
    pca = PCA(10, svd_solver="full").fit(vectors.astype(np.float64))
    sif = 3e-5 if source == "zipf" else 3e-4
    counts = Counter(id for line in own_lines() for id in tokenizer.ids([line])[0])
    if source == "zipf":
        ranks = [1 / rank for rank in range(2, len(vectors) + 2)]
        probabilities = np.array(ranks) / sum(ranks)
    else:
        known = [counts[id] for id in range(SPECIAL, tokenizer.vocab_size)]
        probabilities = np.array(known) / sum(known)
        assert result["counted_pieces"] == sum(known)
    expected = pca.transform(vectors.astype(np.float64)) * (sif / (sif + probabilities))[:, None]
    table = load_file(tmp_path / "static" / "model.safetensors")["embeddings"].numpy()
    assert not table[:SPECIAL].any()
    signs = np.sign(np.sum(table[SPECIAL:] * expected, axis=0))
    np.testing.assert_allclose(table[SPECIAL:], expected * signs, atol=1e-4)
    assert (result["pieces"], result["size"], result["encoder_size"]) == (len(vectors), 10, 48)
    assert result["variance_kept"] == pytest.approx(pca.explained_variance_ratio_.sum(), abs=1e-4)


def test_pieces_are_encoded_as_the_folder_describes(own_tokenizer: Path, tmp_path: Path) -> None:
    settings = VectorSettings(
        pooling=("cls", "mean"), normalize=True, prompts={"passage": "the lane: "}, default_prompt="passage"
    )
    write_vector_model(tmp_path / "model", own_tokenizer, settings)
    export_static(str(tmp_path / "model"), tmp_path / "static")
    table = load_file(tmp_path / "static" / "model.safetensors")["embeddings"].numpy()
    tokenizer = open_tokenizer_folder(own_tokenizer)
    words = [id for id, piece in enumerate(tokenizer.pieces) if piece.isalpha() and len(piece) > 1]
    theirs = SentenceTransformer(str(tmp_path / "model"), device="cpu").encode([tokenizer.pieces[id] for id in words])
    weights = np.array([1 / (id - SPECIAL + 2) for id in range(SPECIAL, tokenizer.vocab_size)])
    factors = 3e-5 / (3e-5 + weights / weights.sum())
    ours = table[words] / factors[[id - SPECIAL for id in words], None]
    assert ours.shape[1] == 96  # fewer than 256: all of them, so that distances stay

    def distances(vectors: np.ndarray[Any, Any]) -> Any:
        return np.linalg.norm(vectors[:, None] - vectors[None], axis=-1)

    np.testing.assert_allclose(distances(ours), distances(theirs), atol=1e-4)


def test_a_truncated_vector_is_not_made_longer(own_tokenizer: Path, tmp_path: Path) -> None:
    write_vector_model(tmp_path / "model", own_tokenizer, VectorSettings(width=20))
    with pytest.raises(InputError, match="--width 21: expected 1 to 20"):
        export_static(str(tmp_path / "model"), tmp_path / "static", width=21)
    assert export_static(str(tmp_path / "model"), tmp_path / "static")["size"] == 20


def test_signs_and_order_of_components_are_fixed() -> None:
    vectors = np.random.default_rng(2).normal(size=(40, 6)).astype(np.float32) * [1, 5, 2, 1, 3, 1]
    first, kept = principal_components(vectors.astype(np.float32), 6)
    assert kept == pytest.approx(1.0)
    assert (np.diff(first.var(axis=0)) <= 0).all()
    np.testing.assert_allclose(first, principal_components(vectors.astype(np.float32), 6)[0])
    axes = np.linalg.lstsq(vectors - vectors.mean(0), first, rcond=None)[0]
    assert (axes[np.abs(axes).argmax(0), np.arange(6)] > 0).all()


def test_the_table_is_measured_as_the_encoder_is(
    own_tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model2vec = pytest.importorskip("model2vec", reason="the oracle; it is in the dev extra")
    write_encoder(tmp_path / "model", own_tokenizer)
    model, static = tmp_path / "model", tmp_path / "static"
    exported, _ = run_json(capsys, "export", "static", "--model", model, "--out", static, "--width", "16")
    assert exported["frequencies"] == "Zipf's law"
    lines = own_lines()[:30]
    pairs = tmp_path / "pairs.tsv"
    rows = [f"{first}\t{second}\t{number % 5}" for number, (first, second) in enumerate(pairwise(lines))]
    pairs.write_text("\n".join(["sentence1\tsentence2\tscore", *rows]) + "\n", "utf-8")
    measured, _ = run_json(capsys, "evaluate", "embed", "--model", static, "--data", pairs)
    theirs = model2vec.StaticModel.from_pretrained(static).encode(lines)
    cosines = np.sum(theirs[:-1] * theirs[1:], axis=1)
    scores = np.arange(len(rows)) % 5
    assert measured["size"] == 16
    assert measured["pearson"] == pytest.approx(np.corrcoef(cosines, scores)[0, 1], abs=1e-4)
    with pytest.raises(InputError, match="--width 17: expected 1 to 16"):
        evaluate_embed(str(static), pairs, width=17)


def test_what_cannot_be_exported_is_refused_and_nothing_written(
    own_tokenizer: Path, own_corpus: Path, own_text: Path, tmp_path: Path
) -> None:
    model = write_encoder(tmp_path / "model", own_tokenizer)
    train_wordpiece(own_lines(), vocab_size=400).save(tmp_path / "other")
    other = write_encoder(tmp_path / "small", tmp_path / "other")
    (tmp_path / "empty.txt").write_text("☃\n", "utf-8")
    out = tmp_path / "out"
    for name, options, message in (
        (model, {"width": 49}, "--width 49: expected 1 to 48"),
        (model, {"width": 0}, "--width 0: expected 1 to 48"),
        ("random:tiny", {}, "random weights have learned nothing"),
        (model, {"corpus": own_corpus, "text": own_text}, "--corpus and --text: expected one of them"),
        (other, {"corpus": own_corpus}, r"expected a corpus of the model's tokenizer .* give the text itself: --text"),
        (model, {"text": tmp_path / "empty.txt"}, "expected pieces of the model's vocabulary, found none"),
    ):
        with pytest.raises(InputError, match=message):
            export_static(name, out, **options)
        assert not out.exists()
    out.mkdir()
    with pytest.raises(InputError, match=r"--out .*out: exists already"):
        export_static(model, out)


def test_a_folder_that_is_made_during_the_export_stays(
    own_tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"

    def late(vectors: np.ndarray[Any, Any], width: int) -> tuple[np.ndarray[Any, Any], float]:
        out.mkdir()
        (out / "thesis.txt").write_text("mine")
        return principal_components(vectors, width)

    monkeypatch.setattr(static_module, "principal_components", late)
    with pytest.raises(InputError, match="out: exists already and is not an empty folder"):
        export_static(write_encoder(tmp_path / "model", own_tokenizer), out)
    assert [path.name for path in out.iterdir()] == ["thesis.txt"]
