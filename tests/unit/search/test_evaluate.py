"""`evaluate embed`: correlations of pairs and metrics of a search, against sentence-transformers and scipy."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr
from sentence_transformers import SentenceTransformer

from bertwright.corpus.build import build_corpus
from bertwright.errors import InputError
from bertwright.model.folder import load_weights, open_model
from bertwright.model.vector_settings import VectorSettings
from bertwright.search.bm25 import rank_by_bm25
from bertwright.search.evaluate import evaluate_embed
from bertwright.tasks.beir import open_retrieval
from bertwright.tasks.binding import open_tokenizer
from bertwright.tasks.embedding.spec import EMBED
from bertwright.tasks.embedding.task import EMBEDDING
from bertwright.tasks.sentence_vectors import SentenceEncoder
from tests.support.commands import run_json
from tests.support.encoders import write_encoder
from tests.support.page_data import documents
from tests.support.retrieval import write_beir
from tests.support.vectors import write_vector_model

PAIRS = [
    ("The ship sails on the sea.", "A ship is on the sea.", 4.5),
    ("Rain falls.", "The teacher reads.", 0.5),
    ("A book is on the table.", "A book is on the table.", 5.0),
    ("The house is old.", "The house by the lane is very old.", 3.5),
]
SETTINGS = VectorSettings(
    pooling=("cls",), prompts={"query": "to ask: ", "document": ""}, normalize=True, max_length=20
)


def write_pairs(path: Path, pairs: list[tuple[str, str, float]], header: str = "sentence1\tsentence2\tscore") -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join([header, *("\t".join(map(str, pair)) for pair in pairs)]) + "\n", "utf-8")
    return path


def correlations(cosines: Any, scores: Any) -> tuple[float, float]:
    return float(spearmanr(cosines, scores).statistic), float(pearsonr(cosines, scores).statistic)


def test_correlations_by_file_and_over_all_pairs(tmp_path: Path, own_tokenizer: Path) -> None:
    write_vector_model(tmp_path / "model", own_tokenizer, SETTINGS)
    write_pairs(tmp_path / "data" / "one.tsv", PAIRS)
    write_pairs(tmp_path / "data" / "two.tsv", PAIRS[::-1][:3])
    theirs = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    first, second, scores = (np.array([*column]) for column in zip(*PAIRS, strict=True))
    a, b = (theirs.encode([*texts]) for texts in (first, second))
    cosines = np.round((a * b).sum(1), 6)
    result = evaluate_embed(str(tmp_path / "model"), tmp_path / "data")
    assert list(result["files"]) == ["one.tsv", "two.tsv"]
    ours = result["files"]["one.tsv"]
    np.testing.assert_allclose((ours["spearman"], ours["pearson"]), correlations(cosines, scores), atol=1e-4)
    together = [np.concatenate([values, values[::-1][:3]]) for values in (cosines, scores)]
    assert result["pairs"] == 7
    np.testing.assert_allclose((result["spearman"], result["pearson"]), correlations(*together), atol=1e-4)
    assert "all pairs" in result["text"]


def test_scores_of_two_scales_have_no_row_together(
    tmp_path: Path, own_tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_vector_model(tmp_path / "model", own_tokenizer, SETTINGS)
    write_pairs(tmp_path / "data" / "one.tsv", PAIRS)
    for scale, shift, message in ((2, 0, "1 to 10"), (0.2, 0, "0.1 to 1"), (1, 5, "5.5 to 10")):
        others = [(first, second, score * scale + shift) for first, second, score in PAIRS]
        write_pairs(tmp_path / "data" / "two.tsv", others)
        result = evaluate_embed(str(tmp_path / "model"), tmp_path / "data")
        assert result["pairs"] == 8
        assert "spearman" not in result
        assert "all pairs" not in result["text"]
        assert f"one.tsv 0.5 to 5, two.tsv {message}" in capsys.readouterr().err


def test_other_columns_and_a_width_are_named(
    tmp_path: Path, own_tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_vector_model(tmp_path / "model", own_tokenizer, SETTINGS)
    table = write_pairs(tmp_path / "pairs.tsv", PAIRS, header="left\tright\tclose")
    options = ["--text-column", "left", "--text-column", "right", "--label-column", "close"]
    result, _ = run_json(
        capsys,
        "evaluate",
        "embed",
        "--model",
        tmp_path / "model",
        "--data",
        table,
        *options,
        "--width",
        "8",
        "--precision",
        "fp32",
    )
    encoder = _encoder(tmp_path / "model")
    a, b = (encoder.vectors([pair[side] for pair in PAIRS], width=8) for side in (0, 1))
    cosines = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    assert result["size"] == 8
    assert result["pearson"] == pytest.approx(correlations(cosines, [pair[2] for pair in PAIRS])[1], abs=1e-4)


@pytest.mark.parametrize("settings", [None, SETTINGS])
def test_a_search_ranks_as_sentence_transformers_does(
    settings: VectorSettings | None, tmp_path: Path, own_tokenizer: Path
) -> None:
    if settings is None:
        write_encoder(tmp_path / "model", own_tokenizer)
    else:
        write_vector_model(tmp_path / "model", own_tokenizer, settings)
    data = open_retrieval(write_beir(tmp_path / "data"))
    result = evaluate_embed(str(tmp_path / "model"), tmp_path / "data")
    theirs = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    [(ids, texts)] = data.documents(10)
    scores = theirs.similarity(theirs.encode_query([*data.queries.values()]), theirs.encode_document(texts)).numpy()
    ranks = {
        query: 1 + sorted(ids, key=lambda id, row=row: -scores[row][ids.index(id)]).index(best)
        for row, (query, best) in enumerate({"q1": "d1", "q2": "d10"}.items())
    }
    assert result["mrr@10"] == pytest.approx(np.mean([1 / rank for rank in ranks.values()]))
    assert result["ndcg@10"] == pytest.approx(np.mean([1 / np.log2(1 + rank) for rank in ranks.values()]))
    assert (result["recall@100"], result["documents"], result["queries"]) == (1.0, 3, 2)
    assert result["baseline_bm25"]["ndcg@10"] == 1.0


def test_a_query_is_not_its_own_answer_unless_it_is_judged_as_one(tmp_path: Path, own_tokenizer: Path) -> None:
    write_encoder(tmp_path / "model", own_tokenizer)
    folder = write_beir(tmp_path / "data")
    with (folder / "queries.jsonl").open("a", encoding="utf-8") as stream:
        stream.write('{"_id": "d1", "text": "A ship. It sails on the sea."}\n')
    (folder / "qrels" / "test.tsv").write_text("d1\td2\t1\nd1\td10\t1\n", "utf-8")
    others = evaluate_embed(str(tmp_path / "model"), folder)
    assert others["ndcg@10"] == 1.0  # the document d1 would be the first
    (folder / "qrels" / "test.tsv").write_text("d1\td1\t1\n", "utf-8")
    itself = evaluate_embed(str(tmp_path / "model"), folder)
    assert (itself["mrr@10"], itself["baseline_bm25"]["mrr@10"]) == (1.0, 1.0)


def test_bm25_is_that_of_its_formula(tmp_path: Path) -> None:
    data = open_retrieval(write_beir(tmp_path / "data"))
    [(numbers, scores)] = rank_by_bm25(data, ["sailing ships"], np.array([-1]))
    assert data.ids[numbers[0]] == "d1"
    mean_length = (3 + 4 + 3) / 3  # ship sail sea · rain fall roof hous · teacher read book
    inverse = np.log(1 + (3 - 1 + 0.5) / (1 + 0.5))
    expected = 2 * inverse * 1 / (1 + 0.9 * (1 - 0.4 + 0.4 * 3 / mean_length))
    assert scores[0] == pytest.approx(expected, rel=1e-4)


def test_without_bm25_its_baseline_is_left_out_and_said(
    tmp_path: Path, own_tokenizer: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "bm25s", None)
    write_encoder(tmp_path / "model", own_tokenizer)
    result = evaluate_embed(str(tmp_path / "model"), write_beir(tmp_path / "data"))
    assert "baseline_bm25" not in result
    assert "the baseline BM25 is left out: BM25 needs the extra 'search'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("pair", "options", "message"),
    [
        (("One.", "", 1.0), {}, r"pairs.tsv:6: expected a text in 'sentence2', got ''"),
        (("One.", "Two.", "x"), {}, r"pairs.tsv:6: expected a finite number in column 'score', got 'x'"),
        (("One.", "Two.", 1.0), {"width": 49}, r"--width 49: expected 1 to 48, the size of this model's vectors"),
        (("One.", "Two.", 1.0), {"text": ("sentence1",)}, r"embed needs pairs: name two columns"),
        (
            ("One.", "Two.", 1.0),
            {"settings": ("temperature=1",)},
            r"temperature=1: evaluate embed takes layout and scores",
        ),
        (("One.", "Two.", 6.0), {"settings": ("scores=0,5",)}, r"pairs.tsv:6: expected a number from 0 to 5"),
        (("One.", "Two.", 1.0), {"label": "gold"}, r"pairs.tsv: there is no column 'gold'"),
    ],
)
def test_bad_pairs_are_refused(
    pair: Any, options: dict[str, Any], message: str, tmp_path: Path, own_tokenizer: Path
) -> None:
    write_encoder(tmp_path / "model", own_tokenizer)
    table = write_pairs(tmp_path / "pairs.tsv", [*PAIRS, pair])
    with pytest.raises(InputError, match=message):
        evaluate_embed(str(tmp_path / "model"), table, **options)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("corpus", {"label": "c"}, r"--data .*corpus: is a corpus, which has no columns; leave --text-column"),
        ("beir", {"settings": ("scores=0,5",)}, r"is in BEIR's layout, .*leave .* --task-setting scores out"),
        ("beir", {"input_format": "csv"}, r"--data .*data: is in BEIR's layout, whose columns are fixed; leave"),
        ("pairs", {"label": "positive"}, r"dev.tsv: --label-column positive: expected scores or labels .*, got pairs;"),
        ("pairs", {"settings": ("scores=0,5",)}, r"scores=0,5: expected pairs with scores in .*, found none"),
        (
            "judgements",
            {"settings": ("layout=scored",)},
            r"test.tsv: is in BEIR's layout, but the layout is set",
        ),
    ],
)
def test_options_that_the_data_cannot_have_are_refused(
    kind: str, options: dict[str, Any], message: str, tmp_path: Path, own_tokenizer: Path
) -> None:
    model = write_encoder(tmp_path / "model", own_tokenizer)
    data = pairs_data(tmp_path / "folder", own_tokenizer, "beir" if kind == "judgements" else kind)
    if kind == "judgements":
        data = data / "qrels" / "test.tsv"
    with pytest.raises(InputError, match=message):
        evaluate_embed(model, data, **options)


def test_empty_texts_are_left_out_and_counted_on_request(tmp_path: Path, own_tokenizer: Path) -> None:
    model = write_encoder(tmp_path / "model", own_tokenizer)
    table = write_pairs(tmp_path / "pairs.tsv", PAIRS)
    expected = evaluate_embed(model, table)
    write_pairs(table, [*PAIRS[:2], ("One.", "", 1.0), *PAIRS[2:]])
    result = evaluate_embed(model, table, on_error="skip")
    assert result["left_out"] == {"pairs.tsv": {"without a text": 1}}
    assert (result["pairs"], result["spearman"]) == (4, expected["spearman"])
    folder = write_beir(tmp_path / "data")
    with (folder / "qrels" / "test.tsv").open("a", encoding="utf-8") as stream:
        stream.write("q1\td9\t1\n")
    assert evaluate_embed(model, folder, on_error="skip")["left_out"] == {"with an unknown id": 1}


LINES = [f"the {name} of the house {row}\tthe old {name} {row}" for row, name in enumerate("abcdefghijkl")]


def pairs_data(folder: Path, tokenizer: Path, kind: str) -> Path:
    """Write data of a kind that `finetune embed` takes; return its path."""
    folder.mkdir()
    if kind == "beir":
        write_beir(folder / "data")
        for split in ("train", "dev"):
            (folder / "data/qrels" / f"{split}.tsv").write_text("q1\td1\t1\nq2\td10\t1\nq3\td2\t1\n", "utf-8")
        return folder / "data"
    if kind == "corpus":
        (folder / "text.txt").write_text(documents(30), "utf-8")
        build_corpus([folder / "text.txt"], tokenizer=tokenizer, out=folder / "corpus", workers=1)
        return folder / "corpus"
    columns = {
        "pairs": "anchor\tpositive",
        "scored": "sentence1\tsentence2\tscore",
        "nli": "sentence1\tsentence2\tlabel",
    }
    cells = {"scored": [f"\t{row % 5}" for row in range(12)], "nli": ["\tentailment", "\tcontradiction"] * 6}
    dev = [line + cell for line, cell in zip(LINES, cells.get(kind, [""] * 12), strict=True)]
    train = ["text", *LINES] if kind == "texts" else [columns[kind], *dev]
    (folder / "train.tsv").write_text("\n".join(train).replace("\t", " " if kind == "texts" else "\t") + "\n", "utf-8")
    (folder / "dev.tsv").write_text("\n".join([columns.get(kind, columns["pairs"]), *dev[3:]]) + "\n", "utf-8")
    return folder


@pytest.mark.parametrize("kind", ["pairs", "scored", "nli", "texts", "beir", "corpus"])
def test_the_metrics_are_those_of_the_validation_in_training(kind: str, tmp_path: Path, own_tokenizer: Path) -> None:
    write_vector_model(tmp_path / "model", own_tokenizer, SETTINGS)
    data = pairs_data(tmp_path / "data", own_tokenizer, kind)
    saved = open_model(str(tmp_path / "model"))
    bound = EMBEDDING.prepare(
        EMBEDDING.for_model(EMBED, saved, 20), data, open_tokenizer(saved), saved.config, max_length=20
    )
    model = bound.build(saved.config)
    load_weights(model, saved)
    expected = bound.evaluate(model)
    assert expected.pop("collapsed") == 0.0
    result = evaluate_embed(str(tmp_path / "model"), data / "qrels/dev.tsv" if kind == "beir" else data)
    measured = result["in_pool"] if kind == "beir" else result
    assert {name: measured[name] for name in expected} == pytest.approx(expected, abs=1e-6)
    assert measured["pairs"] == len(bound.validation["dev"][0])
    assert measured["baseline_words"].keys() == expected.keys()


def _encoder(folder: Path) -> SentenceEncoder:
    saved = open_model(str(folder))
    return SentenceEncoder(saved, open_tokenizer(saved))
