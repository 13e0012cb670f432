"""Mined hard negatives: those of a plain loop, texts that are never mined, resumed runs, and data that have none."""

import hashlib
import json
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertwright.errors import Damaged, InputError, Stopped
from bertwright.files import json_bytes
from bertwright.finetuning import mining
from bertwright.finetuning.mining import MINED, mined_negatives
from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.tasks.embedding.metrics import unit
from bertwright.tasks.embedding.pairs import PairOfTable, TextPairs, equal_key, pairs_of, with_negatives
from bertwright.tasks.embedding.spec import EMBED
from bertwright.tasks.embedding.task import VectorKind
from bertwright.tasks.spec import with_settings
from bertwright.training.hardware import Numerics, resolve_numerics
from tests.support.encoders import write_encoder
from tests.support.retrieval import write_beir
from tests.support.texts import PLACES

SETTINGS = FinetuneSettings(epochs=1, batch_size=4, learning_rate=1e-3, max_length=32, threads=1, precision="fp32")


@pytest.fixture(scope="module")
def mining_numerics() -> Numerics:
    return resolve_numerics("fp32", threads=1)


@pytest.fixture(autouse=True)
def machine_measured(mining_numerics: Numerics, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measuring the machine takes longer than these runs."""
    monkeypatch.setattr("bertwright.finetuning.run.resolve_numerics", lambda *_, **__: mining_numerics)


@pytest.fixture(scope="module")
def places_encoder(tmp_path_factory: pytest.TempPathFactory, places_tokenizer: Path) -> str:
    return write_encoder(tmp_path_factory.mktemp("encoder") / "m", places_tokenizer)


@pytest.fixture
def places_pairs(write: Callable[[str, Any], Path]) -> Path:
    rows = [f"where is the {name}\tthe {name} is by the road" for name in PLACES]
    train = write("data/train.tsv", "\n".join(["anchor\tpositive", *rows, *(f"now {row}" for row in rows)]) + "\n")
    write("data/dev.tsv", "\n".join(["anchor\tpositive", *(f"ask {row}" for row in rows)]) + "\n")
    return train.parent


def in_blocks(texts: Sequence[str], size: int) -> Callable[[], Iterator[list[str]]]:
    return lambda: (list(texts[at : at + size]) for at in range(0, len(texts), size))


def mined(pairs: TextPairs, vectors: dict[str, np.ndarray], texts: Sequence[str], size: int, **options: Any) -> Any:
    def vectors_of(wanted: Sequence[str]) -> np.ndarray:
        return np.stack([vectors[text] for text in wanted])

    sides = vectors_of(pairs.firsts), vectors_of(pairs.seconds)
    return mined_negatives(pairs, *sides, vectors_of, in_blocks(texts, size), **options)


def test_a_text_that_may_be_a_positive_is_left_out_by_the_margin() -> None:
    """The cosines with the anchor: its positive 0.9, a paraphrase without a label 0.89, others 0.8, 0.5 and 0.1."""
    cosines = {"positive": 0.9, "paraphrase": 0.89, "near": 0.8, "middle": 0.5, "far": 0.1, "other": 0.7, "asks": 0.6}
    vectors = {text: np.array([value, np.sqrt(1 - value**2)], np.float32) for text, value in cosines.items()}
    vectors |= {"a": np.array([1.0, 0.0], np.float32), "b": np.array([0.0, 1.0], np.float32)}
    rows = [PairOfTable("a", "positive", ("far",)), PairOfTable("a", "other"), PairOfTable("b", "paraphrase")]
    rows.append(PairOfTable("asks", "a"))
    texts = ["paraphrase", "NEAR", "positive", "near", "far", "middle", "A", "other", "asks", " "]
    vectors |= {"NEAR": vectors["near"], "A": vectors["a"]}
    pairs = pairs_of(rows, "made up")
    result = mined(pairs, vectors, texts, 2, count=3, margin=0.05)
    names = [[texts[number] for number in row] for row in result["negatives"]]
    # `other` is a positive of the same anchor, `asks` an anchor of which it is the positive, `far` is a negative of the
    # pair already, and `near` equals NEAR.
    assert names[0] == ["NEAR", "middle"]
    assert names[1] == ["middle", "far"]  # NEAR is closer than the positive of this pair
    assert "paraphrase" in [
        texts[number] for number in mined(pairs, vectors, texts, 2, count=3, margin=0.0)["negatives"][0]
    ]
    assert result["counts"]["negatives"] == sum(map(len, names))
    assert result["counts"]["texts"] == 8
    more = with_negatives(pairs, names)
    assert [more.seconds[number] for number in more.negatives[0]] == ["far", "NEAR", "middle"]
    assert (more.positives.tolist(), more.seconds[: len(pairs.seconds)]) == (pairs.positives.tolist(), pairs.seconds)


@pytest.mark.parametrize("size", [1, 7, 90])
def test_the_negatives_are_those_of_a_plain_loop(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mining, "QUERIES", 16)
    draw = np.random.default_rng(1)
    texts = [f"text {number}" for number in range(80)] + [f"TEXT {number}" for number in range(10)]
    vectors = {
        text: draw.normal(size=5).astype(np.float32) for text in (*(f"first {row}" for row in range(20)), *texts)
    }
    rows = [PairOfTable(f"first {draw.integers(20)}", texts[draw.integers(80)], (texts[row],)) for row in range(50)]
    rows = [row for row in rows if row.positive not in row.negatives]
    pairs = pairs_of(rows, "made up")
    result = mined(pairs, vectors, texts, size, count=4, margin=0.1)
    cosines = {text: unit(vector[None].astype(np.float32))[0].astype(np.float64) for text, vector in vectors.items()}
    for row, numbers in zip(rows, result["negatives"], strict=True):
        labelled = {equal_key(other.positive) for other in rows if other.anchor == row.anchor}
        limit = round(cosines[row.anchor] @ cosines[row.positive], 6) - 0.1
        scores = {number: round(cosines[row.anchor] @ cosines[texts[number]], 6) for number in range(80)}
        left_out = labelled | {*row.negatives}
        allowed = [number for number in scores if texts[number] not in left_out and scores[number] <= limit]
        assert numbers == sorted(allowed, key=lambda number: (-scores[number], number))[:4]


def interrupt(task: Any, out: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    """Start a run that is stopped at its third batch."""
    collate, calls = VectorKind.collate, iter(range(100))

    def interrupted(self: VectorKind, bound: Any, chosen: Any) -> Any:
        if next(calls) == 2:
            signal.raise_signal(signal.SIGINT)
        return collate(self, bound, chosen)

    with monkeypatch.context() as patched:
        patched.setattr(VectorKind, "collate", interrupted)
        with pytest.raises(Stopped):
            finetune(SETTINGS, task, out=out, **options)


def test_a_resumed_run_has_the_same_negatives_and_the_same_bytes(
    places_pairs: Path, places_encoder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = with_settings(EMBED, ["mine=2", "mine_margin=0"])  # vectors of random weights are all close
    options: Any = {"model": places_encoder, "data": places_pairs}
    finetune(SETTINGS, task, out=tmp_path / "whole", **options)
    interrupt(task, tmp_path / "cut", monkeypatch, **options)
    with monkeypatch.context() as patched:
        patched.setattr(mining, "_mine", lambda *_: pytest.fail("the negatives are computed once"))
        finetune(SETTINGS, task, out=tmp_path / "cut", resume=True, **options)
    for name in (MINED, "model/model.safetensors"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    stored = json.loads((tmp_path / "whole" / MINED).read_text("utf-8"))
    assert stored["counts"]["negatives"] == sum(map(len, stored["negatives"])) > 0
    plain = finetune(SETTINGS, EMBED, out=tmp_path / "plain", **options)
    weights = [(tmp_path / name / "model/model.safetensors").read_bytes() for name in ("whole", "plain")]
    assert weights[0] != weights[1]
    assert plain["metric"] == "mrr@10"


def test_a_damaged_file_is_refused(
    places_pairs: Path, places_encoder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = with_settings(EMBED, ["mine=2", "mine_margin=0"])
    options: Any = {"model": places_encoder, "data": places_pairs}
    interrupt(task, tmp_path / "run", monkeypatch, **options)
    path = tmp_path / "run" / MINED
    whole = path.read_text("utf-8")
    stored = json.loads(whole)
    elsewhere = {name: value for name, value in stored.items() if name != "sha256"} | {"searched": "0" * 64}
    changed = [
        {**stored, "negatives": [[9999], *stored["negatives"][1:]]},
        {**stored, "negatives": stored["negatives"][1:]},
        {**stored, "negatives": stored["negatives"][::-1]},  # numbers that could be right
        elsewhere,
        elsewhere | {"sha256": hashlib.sha256(json_bytes(elsewhere)).hexdigest()},  # mined among other texts
        [],
    ]
    for text in (*map(json.dumps, changed), "text", whole[: len(whole) // 2]):
        path.write_text(text, "utf-8")
        with pytest.raises(Damaged, match=rf"{MINED}.* remove it: then a resumed run mines the negatives again"):
            finetune(SETTINGS, task, out=path.parent, resume=True, **options)
    path.unlink()
    finetune(SETTINGS, task, out=path.parent, resume=True, **options)
    assert path.read_text("utf-8") == whole


def test_a_folder_of_beir_is_mined_in_all_of_its_documents(
    places_encoder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_beir(tmp_path / "data")
    documents = [{"_id": f"n{row}", "text": f"the {name} is by {'the road ' * 20}"} for row, name in enumerate(PLACES)]
    with (folder / "corpus.jsonl").open("a", encoding="utf-8") as stream:
        stream.write("".join(json.dumps(record) + "\n" for record in [*documents, {"_id": "empty", "text": ""}]))
    for split in ("train", "dev"):
        (folder / "qrels" / f"{split}.tsv").write_text("q1\td1\t1\nq2\td10\t1\nq2\td2\t0\n", "utf-8")
    task = with_settings(EMBED, ["mine=3", "mine_margin=0"])
    finetune(SETTINGS, task, model=places_encoder, data=folder, out=tmp_path / "run")
    stored = json.loads((tmp_path / "run" / MINED).read_text("utf-8"))
    assert stored["counts"]["texts"] == 3 + len(PLACES)
    positives = {0: 0, 1: 1}  # the documents of the two queries are the first two of the corpus
    for row, numbers in enumerate(stored["negatives"]):
        assert positives[row] not in numbers
    assert any(number > 2 for row in stored["negatives"] for number in row)
    said = capsys.readouterr().err.splitlines()
    assert sum("hard negatives mined for 2 pairs among" in line for line in said) == 1
    cut = [line.partition(": ")[2] for line in said if "exceed 32 tokens" in line]
    added = {number for row in stored["negatives"] for number in row} - {0, 1}
    long = sum(number > 2 for number in added)
    assert cut == [f"{long} of {len(added)} mined texts exceed 32 tokens and are cut"]


@pytest.mark.parametrize(
    ("header", "settings", "message"),
    [
        (
            "sentence1\tsentence2\tscore",
            ["mine=2"],
            r"mine=2: expected pairs of an anchor and a positive in .*train.tsv",
        ),
        ("text", ["mine=2"], "got texts that match themselves, which have no hard negatives"),
        ("anchor\tpositive", ["mine_margin=0.1"], r"mine_margin=0.1: expected mine=K beside it"),
        (
            "anchor\tpositive",
            ["mine=2", "mine_margin=5"],
            r"mine=2: found no text below the margin of 5; set",
        ),
    ],
)
def test_data_without_negatives_to_mine_are_refused(
    header: str, settings: list[str], message: str, places_pairs: Path, places_encoder: str, tmp_path: Path
) -> None:
    cells = {"text": "{0}", "anchor\tpositive": "{0}\tthe {0}"}.get(header, "{0}\tthe {0}\t{1}")
    rows = [cells.format(name, number) for number, name in enumerate(PLACES)]
    (places_pairs / "train.tsv").write_text("\n".join([header, *rows]) + "\n", "utf-8")
    with pytest.raises(InputError, match=message):
        finetune(
            SETTINGS, with_settings(EMBED, settings), model=places_encoder, data=places_pairs, out=tmp_path / "run"
        )


def test_texts_that_are_cut_are_counted_once(
    places_pairs: Path, places_encoder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train = places_pairs / "train.tsv"
    train.write_text(train.read_text("utf-8").replace("by the road", "by the road " * 20), "utf-8")
    task = with_settings(EMBED, ["mine=2", "mine_margin=0"])
    finetune(SETTINGS, task, model=places_encoder, data=places_pairs, out=tmp_path / "run")
    said = [line for line in capsys.readouterr().err.splitlines() if "train.tsv" in line and "are cut" in line]
    assert [line.partition(": ")[2] for line in said] == [
        f"{len(PLACES)} of {len(PLACES)} texts exceed 32 tokens and are cut"
    ]


def test_random_weights_mine_nothing(places_pairs: Path, places_tokenizer: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"mine=2: expected a pre-trained model, got random:tiny"):
        finetune(
            SETTINGS,
            with_settings(EMBED, ["mine=2"]),
            model="random:tiny",
            data=places_pairs,
            out=tmp_path / "run",
            tokenizer=places_tokenizer,
        )


def test_more_negatives_than_can_be_read_again_are_refused_before_they_are_mined(
    places_encoder: str, places_pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mining, "_MOST", 2 * 2 * len(PLACES))
    task = with_settings(EMBED, ["mine=3"])
    with pytest.raises(InputError, match=r"mine=3: .* pairs would have more than .* set mine to at most 2, or give"):
        finetune(SETTINGS, task, model=places_encoder, data=places_pairs, out=tmp_path / "run")
