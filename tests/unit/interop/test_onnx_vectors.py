"""export onnx of a folder of vectors: finished vectors in ONNX Runtime, its layout, and int8 checked by rankings."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from torch import nn

from bertwright.cli import main
from bertwright.errors import InputError
from bertwright.files import digest_note
from bertwright.interop import onnx as export
from bertwright.interop.onnx import export_onnx
from bertwright.interop.onnx_parity import TEXTS, Agreement
from bertwright.interop.onnx_ranking import RankingCheck, of_search, of_texts
from bertwright.model.backbones import build_backbone
from bertwright.model.folder import open_model, save_model
from bertwright.model.vector_head import open_vector_head
from bertwright.model.vector_settings import DenseLayer, VectorSettings
from bertwright.tasks.beir import open_retrieval
from bertwright.tasks.sentence_vectors import SentenceEncoder, open_sentence_encoder
from bertwright.text.wordpiece import Tokenizer
from tests.support.commands import run_json
from tests.support.encoders import classifier_config, write_encoder
from tests.support.pages import python_blocks
from tests.support.retrieval import write_beir
from tests.support.texts import own_lines
from tests.support.vectors import write_vector_model

onnxruntime = pytest.importorskip("onnxruntime", reason="in the dev extra")

SETTINGS = VectorSettings(
    pooling=("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"),
    dense=(DenseLayer(inputs=6 * 48, outputs=40), DenseLayer(inputs=40, outputs=32, activation="Identity")),
    normalize=True,
    prompts={"query": "a question: ", "document": ""},
    max_length=24,
    query_length=12,
    width=20,
)
LAYOUT = {"1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors", "3_Dense/config.json"}
LAYOUT |= {"3_Dense/model.safetensors", "4_Normalize/config.json", "modules.json", "config_sentence_transformers.json"}
LAYOUT |= {"sentence_bert_config.json", "config.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt"}


@pytest.fixture(scope="module")
def exported_vectors(tmp_path_factory: pytest.TempPathFactory, own_tokenizer: Path) -> tuple[Path, dict[str, Any]]:
    """A folder with every pooling, exported once with int8 of any agreement: the export, and its report."""
    root = tmp_path_factory.mktemp("vectors")
    write_vector_model(root / "model", own_tokenizer, SETTINGS)
    return root / "out", export_onnx(str(root / "model"), root / "out", int8=True, least_agreement=0, least_overlap=0)


def graph_vectors(graph: Path, encoder: SentenceEncoder, texts: list[str]) -> NDArray[np.float32]:
    """Return the vectors of a graph of texts in one batch, as a program has them that knows only tokens."""
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    rows, _ = encoder.rows(texts)
    length = max(map(len, rows))
    ids = np.array([[*row, *[encoder.pad_id] * (length - len(row))] for row in rows], dtype=np.int64)
    mask = np.array([[1] * len(row) + [0] * (length - len(row)) for row in rows], dtype=np.int64)
    feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    vectors: NDArray[np.float32] = session.run(["sentence_embedding"], feeds)[0]
    return vectors


def test_the_graph_gives_our_vectors(exported_vectors: tuple[Path, dict[str, Any]]) -> None:
    """Every pooling, dense layers, normalisation and truncation are inside; a long text is cut before it."""
    folder, result = exported_vectors
    encoder = open_sentence_encoder(result["model"], None, "cpu")
    texts = [*own_lines()[:6], "a", " ".join(own_lines()[:4]), ""]
    expected = encoder.vectors(texts)
    vectors = graph_vectors(folder / "onnx" / "model.onnx", encoder, texts)
    assert vectors.shape == (9, 20)
    np.testing.assert_allclose(vectors, expected, atol=1e-5, rtol=0)
    np.testing.assert_allclose(vectors[:, :8], encoder.vectors(texts, width=8), atol=1e-5, rtol=0)
    np.testing.assert_allclose(graph_vectors(folder / "onnx" / "model.onnx", encoder, ["a"]), expected[6:7], atol=1e-5)
    int8 = graph_vectors(folder / "onnx" / "model_quantized.onnx", encoder, texts)
    assert 1e-4 < np.abs(int8 - expected).max() < 0.5


def test_the_folder_has_the_layout_of_sentence_transformers(exported_vectors: tuple[Path, dict[str, Any]]) -> None:
    folder, result = exported_vectors
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    graphs = ["onnx/model.onnx", "onnx/model_quantized.onnx"]
    notes = {f"{name}_Dense/{digest_note(Path('model.safetensors')).name}" for name in (2, 3)}
    assert files == {*graphs, *LAYOUT, *notes, "export.json"}
    assert list(result["files"]) == list(result["sha256"]) == graphs
    session = onnxruntime.InferenceSession(folder / "onnx" / "model.onnx", providers=["CPUExecutionProvider"])
    assert [entry.name for entry in session.get_outputs()] == ["last_hidden_state", "sentence_embedding"]
    assert [entry.name for entry in session.get_inputs()] == ["input_ids", "attention_mask", "token_type_ids"]
    noted = session.get_modelmeta().custom_metadata_map
    assert (noted["max_tokens"], noted["max_query_tokens"], noted["similarity"]) == ("24", "12", "cosine")
    assert (json.loads(noted["prompts"]), noted["default_prompt"]) == (SETTINGS.prompts, "")
    head, ours = (open_vector_head(path, 48) for path in (folder, Path(result["model"])))
    assert head is not None
    assert ours is not None
    assert head.settings == ours.settings == SETTINGS


def test_the_lines_of_the_manual_give_the_vector_of_a_query(
    exported_vectors: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Python of docs/export.md, for a query that is cut: with its own maximum of tokens, and with its prompt."""
    folder, result = exported_vectors
    manual = (Path(__file__).parents[3] / "docs" / "export.md").read_text("utf-8")
    lines = next(code for code in python_blocks(manual) if "minilm-onnx" in code)
    query = own_lines()[0]
    (tmp_path / "minilm-onnx").symlink_to(folder)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(lines.replace("a walk to the harbour", query), names)
    encoder = open_sentence_encoder(result["model"], None, "cpu")
    assert encoder.rows([query], "query")[1] == [True]
    np.testing.assert_allclose(names["vectors"], encoder.vectors([query], "query"), atol=1e-5)


def test_the_default_prompt_is_in_the_file(tmp_path: Path, own_tokenizer: Path) -> None:
    settings = VectorSettings(prompts={"query": "to ask: "}, default_prompt="query")
    head = write_vector_model(tmp_path / "model", own_tokenizer, settings)
    noted = export._metadata(open_model(str(tmp_path / "model")), head)
    assert (noted["default_prompt"], noted["max_tokens"], noted["max_query_tokens"]) == ("query", "64", "64")


def test_the_reported_overlap_is_that_of_the_ten_nearest(exported_vectors: tuple[Path, dict[str, Any]]) -> None:
    folder, result = exported_vectors
    encoder = open_sentence_encoder(result["model"], None, "cpu")
    texts = list(TEXTS)
    both = [encoder.vectors(texts), graph_vectors(folder / "onnx" / "model_quantized.onnx", encoder, texts)]
    overlaps = []
    for row in range(len(texts)):
        nearest = []
        for vectors in both:
            scores = np.round(vectors.astype(float) @ vectors[row] / np.linalg.norm(vectors, axis=1), 6)
            others = [number for number in range(len(texts)) if number != row]
            nearest.append(set(sorted(others, key=lambda number, scores=scores: -scores[number])[:10]))
        overlaps.append(len(nearest[0] & nearest[1]) / 10)
    ranking = result["int8"]["ranking"]
    assert ranking["overlap"] == pytest.approx(np.mean(overlaps), abs=0.01)
    assert (ranking["queries"], ranking["texts"], ranking["fp32"], ranking["least_overlap"]) == (40, 40, None, 0)
    assert "of the ten nearest of 40 texts are the same, 40 queries (at least 0%)" in result["text"]


class Vectors:
    """Random vectors, the same for the same text."""

    similarity = "cosine"

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def vectors(self, texts: Sequence[str], role: Any = "text", *, width: int | None = None, first: int = 0) -> Any:
        rows = [np.random.default_rng([self.seed, *text.encode()]).normal(size=8) for text in texts]
        return np.array(rows, dtype=np.float32)[:, :width]


def test_vectors_of_another_order_have_a_small_overlap(tmp_path: Path) -> None:
    texts = [f"text {number}" for number in range(40)]
    assert of_texts(Vectors(1), Vectors(1), [*texts, *texts]).overlap == 1.0
    same = of_texts(Vectors(1), Vectors(2), texts)
    assert 0.1 < same.overlap < 0.5
    assert same.texts == 40
    assert of_texts(Vectors(1), Vectors(2), ["alone"]).overlap == 1.0
    data = open_retrieval(write_beir(tmp_path / "beir"))
    ranking = of_search(Vectors(1), Vectors(1), data)
    assert (ranking.overlap, ranking.fp32) == (1.0, ranking.int8)
    assert "nDCG@10" in ranking.text


class Session:
    """A session whose vectors have no order."""

    def run(self, outputs: list[str], feeds: dict[str, Any]) -> list[Any]:
        draw = np.random.default_rng(int(feeds["input_ids"].sum()))
        return [draw.normal(size=(len(feeds["input_ids"]), 48)).astype(np.float32)]


def test_int8_with_other_rankings_is_refused(tmp_path: Path, own_tokenizer: Path) -> None:
    write_vector_model(tmp_path / "model", own_tokenizer, VectorSettings())
    encoder = open_sentence_encoder(str(tmp_path / "model"), None, "cpu")
    with pytest.raises(InputError, match=r"int8: sentence_embedding: .*nearest of 40 texts.*less than --least-overlap"):
        RankingCheck(TEXTS, least_overlap=0.8).compare(encoder, Session())
    with pytest.raises(InputError, match=r"nearest of 41 texts are the same"):  # all others are the nearest of one
        RankingCheck(["alone"], least_overlap=0.8).compare(encoder, Session())
    beir = open_retrieval(write_beir(tmp_path / "beir"))
    with pytest.raises(InputError, match=r"nDCG@10 \d\.\d+, fp32 \d\.\d+; less than --least-agreement 10"):
        RankingCheck((), beir, least_overlap=0.0, least_agreement=10).compare(encoder, Session())
    assert RankingCheck((), beir, least_overlap=0.0).compare(encoder, Session()).fp32 is not None


def test_a_finished_vector_must_be_nearer_than_a_state() -> None:
    off = Agreement(5e-5, 1e-5, 0.2, 1.0, "cosine", 3)
    export._check_exact({"last_hidden_state": off}, "model")
    with pytest.raises(InputError, match="the exported sentence_embedding differ from PyTorch's by up to 5e-05"):
        export._check_exact({"sentence_embedding": off}, "model")


def test_a_pooling_without_the_prompt_gives_the_states_alone(
    tmp_path: Path, own_tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = VectorSettings(include_prompt=False, prompts={"query": "to ask: "})
    write_vector_model(tmp_path / "model", own_tokenizer, settings)
    assert export._vector_head(open_model(str(tmp_path / "model"))) is None
    assert "its pooling leaves out the tokens of the prompt" in capsys.readouterr().err
    write_vector_model(tmp_path / "model", own_tokenizer, settings.model_copy(update={"prompts": {}}))
    assert export._vector_head(open_model(str(tmp_path / "model"))) is not None


def test_an_encoder_without_a_pooler_gives_its_states(tmp_path: Path, own_tokenizer: Path) -> None:
    config = classifier_config(Tokenizer.load(own_tokenizer).vocab_size)
    encoder = nn.ModuleDict({"encoder": build_backbone(config)})
    save_model(tmp_path / "model", encoder, config=config, tokenizer=own_tokenizer, architecture="BertModel")
    result = export_onnx(str(tmp_path / "model"), tmp_path / "out")
    session = onnxruntime.InferenceSession(tmp_path / "out/model.onnx", providers=["CPUExecutionProvider"])
    assert result["outputs"] == [output.name for output in session.get_outputs()] == ["last_hidden_state"]


def test_what_fits_no_vectors_is_refused(
    tmp_path: Path, own_tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before the graph is written."""
    plain = write_encoder(tmp_path / "encoder", own_tokenizer)
    write_vector_model(tmp_path / "vectors", own_tokenizer, VectorSettings())
    vectors, beir = str(tmp_path / "vectors"), str(write_beir(tmp_path / "beir"))
    (tmp_path / "empty").mkdir()
    for model, options, message in (
        (plain, ["--check-retrieval", beir], "--check-retrieval and --least-overlap need --int8"),
        (plain, ["--int8", "--check-retrieval", beir], "gives no vectors of texts"),
        (plain, ["--int8", "--least-overlap", "0.5"], "--least-overlap 0.5: the graph of"),
        (plain, ["--int8", "--least-overlap", "80"], "--least-overlap 80.0: allowed are 0 to 1"),
        (
            vectors,
            ["--int8", "--check-retrieval", str(tmp_path / "empty")],
            "qrels: expected test.tsv or a single table",
        ),
    ):
        assert main(["export", "onnx", "--model", model, "--out", str(tmp_path / "out"), *options]) == 2
        printed = capsys.readouterr().err
        assert message in printed
        assert "writing model.onnx" not in printed
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_the_command_checks_int8_by_a_search(
    tmp_path: Path, own_tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_vector_model(tmp_path / "model", own_tokenizer, VectorSettings(normalize=True))
    beir = write_beir(tmp_path / "beir")
    command = ["export", "onnx", "--model", str(tmp_path / "model"), "--out", str(tmp_path / "out"), "--int8"]
    limits = ["--check-retrieval", str(beir), "--least-overlap", "0", "--least-agreement", "0"]
    result, _ = run_json(capsys, *command, *limits)
    data = open_retrieval(beir)
    ranking = result["int8"]["ranking"]
    assert (ranking["queries"], ranking["texts"]) == (len(data.queries), len(data.ids))
    assert 0 <= ranking["int8"] <= 1


def test_the_graph_has_the_weights_of_pieces(tmp_path: Path, own_tokenizer: Path) -> None:
    settings = VectorSettings(piece_weights=tuple(0.01 + (id * 0.37 % 1) for id in range(500)), normalize=True)
    write_vector_model(tmp_path / "model", own_tokenizer, settings)
    export_onnx(str(tmp_path / "model"), tmp_path / "out")
    encoder = open_sentence_encoder(str(tmp_path / "model"), None, "cpu")
    texts = [*own_lines()[:6], "a", ""]
    vectors = graph_vectors(tmp_path / "out" / "onnx" / "model.onnx", encoder, texts)
    np.testing.assert_allclose(vectors, encoder.vectors(texts), atol=1e-5, rtol=0)
    head = open_vector_head(tmp_path / "out", 48)
    assert head is not None
    assert head.settings.piece_weights == settings.piece_weights
