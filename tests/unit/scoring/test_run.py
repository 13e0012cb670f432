"""The command score sentences: tables and lines in, scores out, sums over the file, and what is refused."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from bertwright.cli import main
from bertwright.scoring.scorer import open_scorer
from bertwright.scoring.settings import ScoreSettings
from tests.support.blimp import log_likelihoods
from tests.support.encoders import write_encoder
from tests.support.language_models import write_language_model

TEXTS = ("The harbour was quiet.", "Gardens remembered.", "The harbour was quiet.")


@pytest.fixture(scope="module")
def small_lm(tmp_path_factory: pytest.TempPathFactory, own_tokenizer: Path) -> str:
    return write_encoder(tmp_path_factory.mktemp("scored") / "masked", own_tokenizer, initializer_range=0.3)


def run_json(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["score", "sentences", *words, "--precision", "fp32", "--json"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return result


@pytest.mark.parametrize("masking", ["within-word", "piece"])
def test_each_sentence_and_the_file_have_their_numbers(
    small_lm: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], masking: Any
) -> None:
    (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text in TEXTS), "utf-8")
    out = tmp_path / "out.jsonl"
    files = ("--input", str(tmp_path / "texts.txt"), "--output", str(out))
    total = run_json(capsys, "--model", small_lm, *files, "--masking", masking)
    scorer = open_scorer(small_lm)
    scores = log_likelihoods(scorer, TEXTS, ScoreSettings(masking=masking))
    rows = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    assert [row["sentence"] for row in rows] == [*TEXTS]
    assert [row["score"] for row in rows] == pytest.approx(scores, abs=1e-4)
    assert [row["pieces"] for row in rows] == [len(ids) for ids in scorer.tokenizer.ids(TEXTS)]
    assert [row["bits_per_character"] for row in rows] == pytest.approx(
        [-score / math.log(2) / len(text) for score, text in zip(scores, TEXTS, strict=True)], abs=1e-4
    )
    assert [row["bits_per_word"] for row in rows] == pytest.approx(
        [-score / math.log(2) / count for score, count in zip(scores, (4, 2, 4), strict=True)], abs=1e-4
    )
    assert (total["sentences"], total["masking"], total["words"]) == (3, masking, 10)
    assert total["score"] == pytest.approx(scores.sum(), abs=1e-3)
    assert total["bits_per_character"] == pytest.approx(-scores.sum() / math.log(2) / 63, abs=1e-5)


def test_a_table_keeps_its_columns_and_an_unknown_piece_is_counted(
    small_lm: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.csv").write_text('id,text\n7,"Rain, and 𒀀"\n', "utf-8")
    files = ("--input", str(tmp_path / "in.csv"), "--output", str(tmp_path / "out.tsv"))
    assert run_json(capsys, "--model", small_lm, *files)["unknown"] == 1
    header, row = ((tmp_path / "out.tsv").read_text("utf-8")).splitlines()
    assert header.split("\t") == ["id", "text", "score", "pieces", "bits_per_character", "bits_per_word"]
    assert row.startswith("7\tRain, and 𒀀\t-")


def test_a_language_model_without_its_first_token_counts_the_rest_of_the_text(
    tmp_path: Path, own_tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_language_model(tmp_path / "left", "bert-left", own_tokenizer, "")
    (tmp_path / "in.jsonl").write_text('{"sentence": "Rain, and the harbour."}\n', "utf-8")
    files = ("--input", str(tmp_path / "in.jsonl"), "--output", str(tmp_path / "out.jsonl"))
    whole = run_json(capsys, "--model", folder, *files)
    rest = run_json(capsys, "--model", folder, *files, "--first-token", "leave-out")
    assert (whole["first_token"], whole["characters"], whole["words"]) == ("count", 22, 4)
    ((ids, offsets),) = open_scorer(folder).tokenizer.offsets(["Rain, and the harbour."])
    assert rest["pieces"] == whole["pieces"] - 1 == len(ids) - 1
    assert rest["characters"] == 22 - offsets[0][1]
    right = write_language_model(tmp_path / "right", "bert-right", own_tokenizer, "")
    assert run_json(capsys, "--model", right, *files, "--first-token", "leave-out")["characters"] == 21


@pytest.mark.parametrize(
    ("content", "options", "words"),
    [
        ("Rain\n\nSun\n", (), r"in.txt:2: expected a sentence, got an empty one"),
        ("Rain\n" + ". " * 63 + "\n", (), r"in.txt:2: the sentence has 65 tokens; expected at most 64"),
        ("Rain\n", ("--first-token", "count"), r"first_token count: is for a language model"),
        ("Rain\n", ("--text-column", "a"), r"--text-column a: a file with a sentence on each line has no columns"),
        ("a\tb\n1\t2\n", ("--input-format", "tsv"), r"in.txt: expected a column 'sentence' or 'text', got a, b"),
    ],
)
def test_what_cannot_be_scored_names_file_and_line(
    small_lm: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    content: str,
    options: tuple[str, ...],
    words: str,
) -> None:
    (tmp_path / "in.txt").write_text(content, "utf-8")
    files = ("--input", str(tmp_path / "in.txt"), "--output", str(tmp_path / "out.tsv"))
    assert main(["score", "sentences", "--model", small_lm, *files, *options, "--precision", "fp32"]) == 2
    assert words in capsys.readouterr().err.replace("\n", " ")
    assert not (tmp_path / "out.tsv").exists()


def test_a_folder_as_the_output_is_refused_before_the_work(
    small_lm: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.txt").write_text("Rain\n", "utf-8")
    files = ("--input", str(tmp_path / "in.txt"), "--output", str(tmp_path))
    assert main(["score", "sentences", "--model", small_lm, *files]) == 2
    assert "expected a file, got a folder" in capsys.readouterr().err
