"""The commands `index` and `search`: built, added to, removed from and searched as the command line says."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bertwright.cli import main
from bertwright.model.vector_settings import VectorSettings
from bertwright.search.index import SearchIndex
from bertwright.search.nearest import Hit
from bertwright.search.rerank import Reranker
from bertwright.search.run import hit_lines
from bertwright.serving.predictor import load
from bertwright.tasks.classification.spec import CLASSIFY, REGRESS
from bertwright.text.wordpiece import Tokenizer
from tests.support.commands import run_json
from tests.support.encoders import classifier_config, save_classifier, small_classifier, write_encoder
from tests.support.vectors import write_vector_model

LINES = {"a": "A ship sails on the sea.", "b": "Rain falls on the roof.", "c": "The teacher reads a book."}
FP32 = ("--precision", "fp32")


@pytest.fixture(scope="module")
def plain_model(tmp_path_factory: pytest.TempPathFactory, own_tokenizer: Path) -> str:
    """A folder with an encoder without settings of vectors; no test writes to it."""
    return write_encoder(tmp_path_factory.mktemp("plain") / "model", own_tokenizer)


@pytest.fixture
def made_index(tmp_path: Path, plain_model: str, capsys: pytest.CaptureFixture[str]) -> Path:
    """An index of three texts with ids and a field."""
    (tmp_path / "a.csv").write_text("id,text,kind\n" + "".join(f"{id},{text},x\n" for id, text in LINES.items()))
    result, _ = run_json(capsys, "index", tmp_path / "a.csv", "--model", plain_model, "--out", tmp_path / "i", *FP32)
    assert (result["rows"], result["added"], result["cut"], result["similarity"]) == (3, 3, 0, "cosine")
    assert result["texts_per_second"] > 0
    return tmp_path / "i"


def test_a_text_is_its_own_nearest_one(made_index: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result, _ = run_json(capsys, "search", made_index, LINES["b"], "--top-k", 2, *FP32)
    assert len(result["hits"]) == 2
    assert result["hits"][0] == {"id": "b", "score": 1.0, "text": LINES["b"], "fields": {"kind": "x"}}
    assert main(["search", str(made_index), LINES["b"], *FP32]) == 0
    assert capsys.readouterr().out.splitlines()[0] == f"   1.0000  b  {LINES['b']}"


@pytest.mark.parametrize("last", ["a,Snow falls.", "d,"])
def test_rows_are_checked_before_the_model_computes(
    last: str,
    made_index: Path,
    plain_model: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bertwright.search.texts._BLOCK", 1)
    monkeypatch.setattr("bertwright.search.index.new_segment", lambda *_: pytest.fail("it computes"))
    (tmp_path / "bad.csv").write_text(f"id,text\na,Snow.\nb,Ice.\n{last}\n", "utf-8")
    build = ("index", tmp_path / "bad.csv", "--model", plain_model)
    _, said = run_json(capsys, *build, "--out", tmp_path / "j", *FP32, code=2)
    assert "bad.csv:4: " in said
    _, said = run_json(capsys, *build, "--out", made_index, "--add", *FP32, code=2)
    assert "bad.csv:2: the id 'a' is in the index already" in said
    two_files = (*build[:2], tmp_path / "absent.csv", *build[2:], "--out", tmp_path / "j", *FP32)
    _, said = run_json(capsys, *two_files, code=2)
    assert "bad.csv:4: " in said
    (tmp_path / "bad.csv").write_text("id,text\nd,Snow.\ne,\n", "utf-8")
    _, said = run_json(capsys, *two_files, "--on-error", "skip", code=2)
    assert "absent.csv: there is no such file" in said
    monkeypatch.undo()
    result, said = run_json(capsys, *build[:2], "--add", "--out", made_index, "--on-error", "skip", *FP32)
    assert (result["rows"], said.count("1 row is left out")) == (4, 1)


def test_a_model_without_vectors_of_texts_is_told(
    plain_model: str, tmp_path: Path, own_tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.TXT").write_text("Rain falls.\n", "utf-8")
    write_vector_model(tmp_path / "model", own_tokenizer, VectorSettings(normalize=True))
    for model, is_said in ((plain_model, True), (tmp_path / "model", False)):
        _, said = run_json(
            capsys, "index", tmp_path / "a.TXT", "--model", model, "--out", tmp_path / str(is_said), *FP32
        )
        assert ("does not describe vectors of texts" in said) is is_said


def test_texts_of_another_script_are_told(
    plain_model: str, made_index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.txt").write_text("비가 온다.\n☃ ☃\n", "utf-8")
    _, said = run_json(capsys, "index", tmp_path / "a.txt", "--model", plain_model, "--out", tmp_path / "index", *FP32)
    [percent] = re.findall(r"the added texts: (\d+)% of the pieces are \[UNK\]", said)
    assert int(percent) > 20
    assert f"and {Path(plain_model).resolve()} cannot see" in said
    _, said = run_json(capsys, "index", tmp_path / "a.txt", "--add", "--out", made_index, *FP32)
    assert f"{percent}% of the pieces are [UNK]" in said


def test_the_service_of_an_index_has_its_model(
    made_index: Path, plain_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[dict[str, str]] = []
    monkeypatch.setattr("bertwright.serving.server.open_models", lambda models, **_: served.append(models))
    monkeypatch.setattr("bertwright.serving.server.serve", lambda *_, **__: None)
    monkeypatch.setattr("bertwright.serving.search.open_indexes", lambda *_: {})
    assert main(["serve", "--index", str(made_index), "--index", f"again={made_index}"]) == 0
    assert [*served[0].values()] == [str(Path(plain_model).resolve())]


def test_queries_of_a_table_keep_their_ids(
    made_index: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    queries = tmp_path / "queries.jsonl"
    queries.write_text("".join(json.dumps({"_id": f"q{id}", "text": LINES[id]}) + "\n" for id in "ca"), "utf-8")
    result, _ = run_json(capsys, "search", made_index, "--queries", queries, "--top-k", 1, *FP32)
    assert [(one["id"], one["query"], one["hits"][0]["id"]) for one in result["queries"]] == [
        ("qc", LINES["c"], "c"),
        ("qa", LINES["a"], "a"),
    ]


def test_texts_are_added_and_removed(made_index: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "more.txt").write_text("The old house stands by the lane.\n", "utf-8")
    result, _ = run_json(capsys, "index", tmp_path / "more.txt", "--out", made_index, "--add", *FP32)
    assert (result["rows"], result["added"]) == (4, 1)
    (tmp_path / "ids.txt").write_text("b\n\nc\n", "utf-8")
    result, _ = run_json(capsys, "index", "--out", made_index, "--remove", "a", "--remove-ids", tmp_path / "ids.txt")
    assert (result["rows"], result["removed"]) == (1, 3)
    result, _ = run_json(capsys, "search", made_index, "house", *FP32)
    assert [hit["id"] for hit in result["hits"]] == ["4"]  # the fourth row that was added


def test_queries_that_cannot_be_used_are_left_out_on_request(
    made_index: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    queries = tmp_path / "queries.txt"
    queries.write_text(f"{LINES['c']}\n\n{LINES['a']}\n", "utf-8")
    ask = ("search", made_index, "--queries", queries, "--top-k", 1, *FP32)
    _, said = run_json(capsys, *ask, code=2)
    assert "queries.txt:2: expected a text in 'text', got an empty one" in said
    result, said = run_json(capsys, *ask, "--on-error", "skip")
    assert [(one["id"], one["hits"][0]["id"]) for one in result["queries"]] == [("1", "c"), ("3", "a")]
    assert "1 row is left out: 1 without a text" in said


def test_an_id_with_blanks_at_its_ends_is_removed(
    made_index: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "more.csv").write_text("id,text\n d ,Snow.\n e ,Ice.\n", "utf-8")
    run_json(capsys, "index", tmp_path / "more.csv", "--out", made_index, "--add", *FP32)
    (tmp_path / "ids.txt").write_text(" d \n", "utf-8")
    run_json(capsys, "index", "--out", made_index, "--remove", " e ", "--remove-ids", tmp_path / "ids.txt")
    assert len(SearchIndex.open(made_index)) == 3


def test_lines_of_hits_have_no_control_characters() -> None:
    hits = [Hit("a\x1b[2J", 0.5, "A\x07 ship\nsails\x9b.", {}), Hit("b" * 99, 0.25, "Rain", {})]
    assert hit_lines(hits) == [
        f"   0.5000  {'a[2J':61}  A ship sails.",
        f"   0.2500  {'b' * 60}…  Rain",
    ]


def test_a_loaded_model_searches(made_index: Path, plain_model: str, tmp_path: Path, own_tokenizer: Path) -> None:
    model = load(plain_model, precision="fp32")
    hits = model.search(LINES["c"], index=made_index, top_k=1)
    assert [(hit.id, hit.score, hit.fields) for hit in hits] == [("c", 1.0, {"kind": "x"})]
    several = model.search([LINES["a"], LINES["b"]], index=SearchIndex.open(made_index))
    assert [hits[0].id for hits in several] == ["a", "b"]


Change = Callable[[Path, str], list[Any]]
CHANGES: dict[str, Change] = {
    "is an index already; add --add": lambda index, model: ["index", "a.csv", "--model", model, "--out", index],
    "a.csv:2: the id 'a' is in the index already": lambda index, _: ["index", "a.csv", "--out", index, "--add"],
    "--model: expected the model folder": lambda index, _: ["index", "a.csv", "--out", f"{index}2"],
    "--width 99: expected 1 to 48": lambda index, model: [
        *("index", "a.csv", "--model", model, "--out", f"{index}2", "--width", "99")
    ],
    "--width 8: an index has one width": lambda index, _: ["index", "a.csv", "--out", index, "--add", "--width", "8"],
    "--approximate: an index stays as it was built": lambda index, _: [
        *("index", "a.csv", "--out", index, "--add", "--approximate")
    ],
    "--remove: there is no id 'z' in": lambda index, _: ["index", "--out", index, "--remove", "z"],
    "ids.txt:2: there is no id 'z' in": lambda index, _: ["index", "--out", index, "--remove-ids", "ids.txt"],
    "no.txt: there is no such file": lambda index, _: ["index", "--out", index, "--remove-ids", "no.txt"],
    "--remove: removes rows": lambda index, _: ["index", "--out", index, "--remove", "a", "--on-error", "skip"],
    "--join: takes an index alone": lambda index, _: ["index", "--out", index, "--join", "--input-format", "csv"],
    "--remove: removes rows of --out": lambda index, _: ["index", "a.csv", "--out", index, "--remove", "a"],
    "index: expected TEXTS": lambda index, _: ["index", "--out", index],
    "expected the model that made this index": lambda index, _: ["search", index, "a", "--model", "other"],
    "QUERY: expected a text": lambda index, _: ["search", index, " "],
    "search: expected QUERY or --queries": lambda index, _: ["search", index],
    "--top-k 0: expected at least 1": lambda index, _: ["search", index, "a", "--top-k", "0"],
    "--candidates 9: are texts that --rerank reads": lambda index, _: ["search", index, "a", "--candidates", "9"],
    "--text-column: is for the file of --queries": lambda index, _: ["search", index, "a", "--text-column", "b"],
    "--id-column: is for the file of --queries": lambda index, _: ["search", index, "a", "--id-column", "b"],
    "--input-format: is for the file of --queries": lambda index, _: ["search", index, "a", "--input-format", "csv"],
    "--on-error: is for the file of --queries": lambda index, _: ["search", index, "a", "--on-error", "skip"],
    "--exact: every search of": lambda index, _: ["search", index, "a", "--exact"],
    "not an index (it has no manifest.json)": lambda index, _: ["search", index.parent, "a"],
}


@pytest.mark.parametrize("message", CHANGES)
def test_bad_usage_is_refused(
    message: str,
    made_index: Path,
    plain_model: str,
    own_tokenizer: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(made_index.parent)
    Path("ids.txt").write_text("a\nz\n", "utf-8")
    if "made this index" in message:
        write_encoder(Path("other"), own_tokenizer, hidden=32)
    arguments = [str(argument) for argument in CHANGES[message](made_index, plain_model)]
    computes = not any(argument.startswith("--remove") for argument in arguments)
    assert main([*arguments, *(FP32 if computes else ())]) == 2
    assert message in capsys.readouterr().err
    assert len(SearchIndex.open(made_index)) == 3
    assert not Path(f"{made_index}2").exists()


def test_a_model_that_moved_is_named_again(
    tmp_path: Path, own_tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.txt").write_text("A ship.\n", "utf-8")
    model = Path(write_encoder(tmp_path / "model", own_tokenizer))
    run_json(capsys, "index", tmp_path / "a.txt", "--model", model, "--out", tmp_path / "i", *FP32)
    model.rename(tmp_path / "moved")
    assert main(["search", str(tmp_path / "i"), "ship", *FP32]) == 2
    assert "is not at" in capsys.readouterr().err
    result, _ = run_json(capsys, "search", tmp_path / "i", "ship", "--model", tmp_path / "moved", *FP32)
    assert result["hits"][0]["id"] == "1"


def test_an_approximate_index_needs_faiss_before_any_work(
    made_index: Path, plain_model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    made = ["--model", plain_model, "--out", f"{made_index}2", "--approximate", *FP32]
    assert main(["index", str(made_index.parent / "a.csv"), *made]) == 2
    assert "an approximate index needs the extra 'search'" in capsys.readouterr().err
    assert not Path(f"{made_index}2").exists()


def test_a_reranker_orders_the_best_texts_anew(
    made_index: Path, own_tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = REGRESS.model_copy(update={"text": ("query", "document")})
    model = small_classifier(classifier_config(Tokenizer.load(own_tokenizer).vocab_size), 1)
    reranker = save_classifier(made_index.with_name("reranker"), model, task, own_tokenizer, 64)
    scores = Reranker.open(reranker, precision="fp32").scores("a ship", [*LINES.values()])
    ids = [id for _, id in sorted(zip(-scores, LINES, strict=True))]
    ask = ["search", made_index, "a ship", "--rerank", reranker, *FP32]
    result, _ = run_json(capsys, *ask)
    assert [hit["id"] for hit in result["hits"]] == ids
    assert [hit["score"] for hit in result["hits"]] == pytest.approx(sorted(scores, reverse=True), abs=1e-5)
    first, _ = run_json(capsys, "search", made_index, "a ship", "--top-k", 2, *FP32)
    best = {hit["id"] for hit in first["hits"]}
    result, _ = run_json(capsys, *ask, "--candidates", 2, "--top-k", 1)
    assert [hit["id"] for hit in result["hits"]] == [id for id in ids if id in best][:1]
    run_json(capsys, *ask, "--candidates", 2, code=2)
    result, errors = run_json(capsys, *ask, "--top-k", 60)  # more than the default number of candidates
    assert len(result["hits"]) == len(ids)
    assert "cut" not in errors
    short = save_classifier(made_index.with_name("short"), model, task, own_tokenizer, 6)
    _, errors = run_json(capsys, "search", made_index, "a ship", "--rerank", short, *FP32)
    assert f"{len(ids)} of {len(ids)} pairs of query and document have more tokens than the model reads" in errors


def test_a_label_of_the_reranker_is_named(
    made_index: Path, own_tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = CLASSIFY.model_copy(update={"text": ("query", "document"), "labels": ("a", "b")})
    model = small_classifier(classifier_config(Tokenizer.load(own_tokenizer).vocab_size), 2)
    reranker = save_classifier(made_index.with_name("labels"), model, task, own_tokenizer, 64)
    ask = ["search", str(made_index), "a ship", *FP32]
    assert main([*ask, "--rerank", reranker]) == 2
    assert main([*ask, "--relevant", "a"]) == 2
    errors = " ".join(capsys.readouterr().err.split())
    assert "got a, b; name the label" in errors
    assert "--relevant a: names a label of the reranker" in errors
    by_a, by_b = (run_json(capsys, *ask, "--rerank", reranker, "--relevant", label)[0]["hits"] for label in ("a", "b"))
    assert [hit["id"] for hit in by_a] == [hit["id"] for hit in by_b][::-1]


def test_a_folder_of_long_texts_is_searched_by_passages(
    plain_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes" / "old").mkdir(parents=True)
    (tmp_path / "notes" / "ship.txt").write_text(f"{LINES['a']} " * 12 + LINES["b"], "utf-8")
    (tmp_path / "notes" / "old" / "book.md").write_text(LINES["c"], "utf-8")
    index = ("--out", tmp_path / "i", *FP32)
    result, said = run_json(capsys, "index", tmp_path / "notes", "--model", plain_model, "--passages", 32, *index)
    assert "--passages" not in said
    assert (result["rows"] > 4, result["cut"]) == (True, 0)
    nearest, _ = run_json(capsys, "search", tmp_path / "i", LINES["c"], "--top-k", 1, *FP32)
    assert nearest["hits"][0] == {"id": "old/book.md#1", "score": 1.0, "text": LINES["c"], "fields": {}}
    _, said = run_json(capsys, "index", tmp_path / "notes", "--add", *index, code=2)
    assert "ship.txt: the id 'ship.txt' is in the index already" in said  # other passages
    again = ("index", tmp_path / "notes", "--add", "--passages", 32, *index)
    unchanged, said = run_json(capsys, *again)
    assert (unchanged["rows"], unchanged["added"]) == (result["rows"], 0)
    assert "all texts are in the index as they are; nothing was added" in said
    (tmp_path / "notes" / "new.txt").write_text(LINES["b"], "utf-8")
    (tmp_path / "notes" / "old" / "last.txt").write_bytes(b"\xff")
    _, said = run_json(capsys, *again, code=2)
    assert "last.txt:1: not UTF-8" in said
    (tmp_path / "notes" / "old" / "last.txt").unlink()
    grown, said = run_json(capsys, *again)
    assert (grown["rows"], grown["added"]) == (result["rows"] + 1, 1)
    assert said.count("2 texts are in the index as they are, and are left out") == 1
    (tmp_path / "notes" / "new.txt").write_text(LINES["c"], "utf-8")
    _, said = run_json(capsys, *again, code=2)
    assert "new.txt: the id 'new.txt' is in the index already; expected a new one: remove it first" in said
    run_json(capsys, "index", "--out", tmp_path / "i", "--remove", "new.txt")
    for id, words in (("ship", "there is no id 'ship'"), (" ", "--remove: expected the id of a row or of a text")):
        _, said = run_json(capsys, "index", "--out", tmp_path / "i", "--remove", id, code=2)
        assert words in said
    _, said = run_json(capsys, "index", tmp_path / "notes" / "old" / "book.md", "--add", *index, code=2)
    assert "book.md: expected a table; text files are read by folder" in said
    removed, _ = run_json(capsys, "index", "--out", tmp_path / "i", "--remove", "ship.txt")
    assert (removed["rows"], removed["removed"]) == (1, result["rows"] - 1)
    _, said = run_json(capsys, "search", tmp_path / "i", "--queries", tmp_path / "notes", *FP32, code=2)
    assert "--queries" in said
    assert "got a folder" in said


def test_passages_of_numbered_rows_share_a_number(
    plain_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long = " ".join(LINES.values())
    (tmp_path / "a.txt").write_text(f"{long}\n{LINES['b']}\n", "utf-8")
    index = ("--out", tmp_path / "i", *FP32)
    run_json(capsys, "index", tmp_path / "a.txt", "--model", plain_model, "--passages", 16, *index)
    run_json(capsys, "index", tmp_path / "a.txt", "--add", "--passages", 16, *index)
    ids = sorted(id for segment in SearchIndex.open(tmp_path / "i").segments for id in segment.ids)
    count = sum(id.startswith("1#") for id in ids)
    assert count > 1
    each = [str(number) for number in range(1, count + 1)]
    assert ids == sorted([*(f"{row}#{number}" for row in (1, 3) for number in each), "2#1", "4#1"])
    removed, _ = run_json(capsys, "index", "--out", tmp_path / "i", "--remove", "3")
    assert removed["removed"] == count


def test_long_texts_that_are_cut_are_told(plain_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text(f"{LINES['a']} " * 99 + f"\n{LINES['b']}\n", "utf-8")
    result, said = run_json(capsys, "index", tmp_path / "a.txt", "--model", plain_model, "--out", tmp_path / "i", *FP32)
    assert result["cut"] == 1
    assert "1 of 2 texts have more tokens than the model reads" in said
    assert "--passages" in said


@pytest.mark.parametrize("option", [("--device", "cuda"), ("--precision", "bf16"), ("--passages", "64")])
def test_removing_rows_takes_no_options_of_texts(
    option: tuple[str, str], made_index: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for change in (("--remove", "a"), ("--join",), ("--verify",)):
        _, said = run_json(capsys, "index", "--out", made_index, *change, *option, code=2)
        assert "give" in said
        assert "another command" in said
