"""A small teacher that was fine-tuned on made-up reviews, for the tests of distillation."""

import random
from pathlib import Path

import pytest

from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.tasks.spec import get_spec
from bertwright.text.wordpiece import train_wordpiece

GOOD = "good fine great lovely bright superb warm clever funny moving rich sharp".split()
BAD = "bad poor dull awful grim weak cold stupid boring flat thin blunt".split()


def reviews_of(count: int, seed: int) -> list[tuple[str, str]]:
    """Reviews with their labels, which one word decides."""
    draw, rows = random.Random(seed), []
    for _ in range(count):
        is_good = draw.random() < 0.5
        thing = draw.choice(["film", "book", "play", "song"])
        rows.append((f"the {thing} was {draw.choice(GOOD if is_good else BAD)}", "pos" if is_good else "neg"))
    return rows


def write_reviews(path: Path, rows: list[tuple[str, str]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows))
    return path


@pytest.fixture(scope="session")
def reviews_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `data` (many labels), `few` (6 labels), `more.txt` (texts without labels) and `tok`."""
    folder = tmp_path_factory.mktemp("reviews")
    rows = reviews_of(300, seed=1)
    dev = reviews_of(80, seed=2)
    for name, train in (("data", rows), ("few", rows[:6])):
        write_reviews(folder / name / "train.tsv", train)
        write_reviews(folder / name / "dev.tsv", dev)
    (folder / "more.txt").write_text("".join(f"{text}\n" for text, _ in reviews_of(240, seed=3)))
    train_wordpiece([text for text, _ in rows], vocab_size=90).save(folder / "tok")
    return folder


@pytest.fixture(scope="session")
def teacher(reviews_folder: Path) -> str:
    """A run folder with a classifier of three layers of 32."""
    out = reviews_folder / "teacher"
    settings = FinetuneSettings(epochs=5, learning_rate=5e-3, precision="fp32", threads=1, max_length=24)
    paths = {"data": reviews_folder / "data", "tokenizer": reviews_folder / "tok", "out": out}
    finetune(settings, get_spec("classify"), model="random:3x32x2", **paths)
    return str(out)
