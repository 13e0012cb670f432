"""Small made-up data for the manual's commands, in the current folder and under the manual's names."""

import bz2
import csv
import gzip
import json
import lzma
import shutil
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bertwright.finetuning.glue_submission import SUBMISSION_FILES, TASKS
from bertwright.model.vector_settings import VectorSettings, write_vector_settings
from bertwright.tasks.classification.spec import get_task
from tests.support.blimp import write_blimp
from tests.support.pages import ROOT
from tests.support.paper_data import write_data
from tests.support.retrieval import write_beir


def plain_sentences(count: int) -> Iterator[str]:
    """Plain sentences, no two alike."""
    animals = ("cat", "dog", "horse", "owl", "fox", "goose", "otter", "mole", "hare", "swan")
    ways = ("slowly", "alone", "in the rain", "before dawn", "with the others", "for the first time")
    places = ("harbour", "garden", "library", "kitchen", "station", "meadow", "tower")
    for day in range(count):
        yield f"On day {day} the {animals[day % 10]} walked {ways[day % 6]} to the {places[day % 7]} by the sea."


def documents(count: int) -> str:
    """Documents of six sentences, parted by blank lines."""
    lines = [*plain_sentences(6 * count)]
    return "\n\n".join("\n".join(lines[start : start + 6]) for start in range(0, 6 * count, 6)) + "\n"


def write_texts() -> None:
    """Plain text, packed text, and a dump of Wikipedia that holds the same."""
    own_words = (ROOT / "tests" / "fixtures" / "own_text.txt").read_text("utf-8")
    text = f"{own_words}\n\n{documents(60)}"
    for name in ("text.txt", "text/one.txt", "domain/one.txt", "mine/one.txt", "quickstart/text.txt"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text, "utf-8")
    Path("wiki.txt").write_text(documents(60), "utf-8")
    Path("novels.txt").write_text(f"{own_words}\n\n{documents(50)}", "utf-8")
    Path("other.txt").write_text(f"The other text.\n\n{own_words}\n\n{documents(20)}", "utf-8")
    Path("texts.txt").write_text("".join(f"{sentence}\n" for sentence in plain_sentences(3)), "utf-8")
    Path("sentences.txt").write_bytes(Path("texts.txt").read_bytes())
    paradigms = sorted(write_blimp(Path("blimp")).iterdir())
    Path("blimp.jsonl.xz").write_bytes(lzma.compress(b"".join(path.read_bytes() for path in paradigms)))
    Path("babylm-filtered-pairids.json").write_text(json.dumps({"transitive": ["0", "2"]}))
    Path("texts.gz").write_bytes(gzip.compress(Path("texts.txt").read_bytes()))
    for name, source in (("wiki-00", "text.txt"), ("heldout", "other.txt"), ("novels-0", "novels.txt")):
        Path(f"{name}.xz").write_bytes(lzma.compress(Path(source).read_bytes()))
    Path("dump").mkdir()
    for number in range(8):
        Path(f"dump/{number}.bz2").write_bytes(bz2.compress(documents(4 + number).encode()))
    pages = "".join(
        f"<page><title>T{number}</title><ns>0</ns><id>{number}</id><revision><id>{number}</id><model>wikitext</model>"
        f'<format>text/x-wiki</format><text xml:space="preserve">{part}</text></revision></page>'
        for number, part in enumerate(text.split("\n\n"))
    )
    space = "http://www.mediawiki.org/xml/export-0.11/"
    dump = f'<mediawiki xmlns="{space}" version="0.11" xml:lang="en">{pages}</mediawiki>'
    Path("enwiki-latest-pages-articles.xml.bz2").write_bytes(bz2.compress(dump.encode()))


def write_table(path: str, rows: Iterable[tuple[object, ...]], between: str = "\t") -> None:
    """Write rows as a tsv or csv."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with Path(path).open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream, delimiter=between, lineterminator="\n").writerows(rows)


def write_tables() -> None:
    """Labelled tables, rows to be answered, and the files of all tasks."""
    write_data(Path("data"))
    rated = [(sentence, ("bad", "good")[number % 2]) for number, sentence in enumerate(plain_sentences(80))]
    for part, rows in (("train", rated[:50]), ("dev", rated[50:])):
        write_table(f"mine/{part}.tsv", [("text", "label"), *rows])
    for part, rows in (("train", rated[:40]), ("dev", rated[40:60]), ("test", rated[60:])):
        write_table(f"quickstart/task/{part}.tsv", [("sentence", "label"), *rows])
        coded = [("sentence", "label"), *((text, int(label == "good")) for text, label in rows)]
        for folder in ("SST-2", "GLUE/SST-2"):
            write_table(f"{folder}/{part}.tsv", coded)
    pairs = [
        (first, second, day % 6) for day, (first, second) in enumerate(zip(*[plain_sentences(40)] * 2, strict=True))
    ]
    for name in ("STSB-test", "STS12"):
        write_table(f"sts/{name}.tsv", [("sentence1", "sentence2", "score"), *pairs])
    write_beir(Path("scifact"))
    judgements = [("query-id", "corpus-id", "score"), ("q1", "d1", 1), ("q2", "d10", 2), ("q3", "d2", 1)]
    write_table("scifact/qrels/train.tsv", judgements)
    write_judged(Path("judged.jsonl"))
    sentences = [*plain_sentences(63)]
    numbered = [("id", "text", "day"), *((day, " ".join(sentences[day : day + 4]), day) for day in range(60))]
    write_table("articles.csv", numbered[:41], ",")
    write_table("more.csv", [numbered[0], *numbered[41:]], ",")
    Path("notes/old").mkdir(parents=True)
    Path("notes/old/march.md").write_text("A note of March.\n", "utf-8")
    for day in range(3):
        Path(f"notes/day{day}.md").write_text("\n\n".join(sentences[day : day + 20]), "utf-8")
    write_table("reports.csv", numbered[:9], ",")
    Path("gone.txt").write_text("3\n5\n", "utf-8")
    Path("queries.txt").write_text("A walk in the garden.\nA fox by the sea.\n", "utf-8")
    write_table("reviews.csv", [("text", "label"), *rated], ",")
    write_table("new.csv", [("text",), *((text,) for text, _ in rated[:5])], ",")
    for name in ("reviews.tsv", "rows.tsv"):
        write_table(name, [("sentence",), *((text,) for text, _ in rated[:5])])
    pq.write_table(pa.table({"sentence": [text for text, _ in rated[:5]]}), "rows.parquet")
    for part in ("train", "dev", "test"):
        lines = Path("data/ner/wnut17", f"{'dev' if part == 'test' else part}.conll").read_text("utf-8")
        Path("names").mkdir(exist_ok=True)
        Path(f"names/{part}.conll").write_text(lines, "utf-8")
    Path("words.conll").write_text("Anna\nleft\nOslo\n.\n", "utf-8")
    gold = json.loads(Path("data/squad/dev-v2.0.json").read_text("utf-8"))
    ids = [one["id"] for article in gold["data"] for part in article["paragraphs"] for one in part["qas"]]
    Path("predictions.json").write_text(json.dumps(dict.fromkeys(ids, "harbour")))
    write_pairs()
    for part in SUBMISSION_FILES:
        columns = ("sentence1", "sentence2") if part.file == "AX" else get_task(part.task).text
        rows = [(number, *(f"{column} {number}" for column in columns)) for number in range(3)]
        write_table(f"GLUE/{part.folder}/{part.stem}.tsv", [("index", *columns), *rows])
    for name in TASKS:
        task = get_task(name)
        labels = [*task.labels] or ["0.5", "4.5"]
        rows = [(*(f"{column} {number}" for column in task.text), labels[number % len(labels)]) for number in range(12)]
        write_table(f"tables/{name}.csv", [(*task.text, task.label), *rows], ",")


def write_judged(path: Path) -> None:
    """Queries with documents, a number and a label for each pair."""
    rows = [
        {"query": f"Day {day}?", "document": text, "score": day % 3, "label": ("irrelevant", "relevant")[day % 2]}
        for day, text in enumerate(plain_sentences(40))
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


def write_pairs() -> None:
    """Pairs of texts in tables."""
    matched = [(f"Who walked on day {day}?", sentence) for day, sentence in enumerate(plain_sentences(60))]
    for folder, columns in (("pairs", ("anchor", "positive")), ("questions", ("question", "answer"))):
        for part, rows in (("train", matched[:40]), ("dev", matched[40:])):
            write_table(f"{folder}/{part}.tsv", [columns, *rows])
    write_table("pairs.tsv", [("anchor", "positive"), *matched])
    labels = ("entailment", "neutral", "contradiction")
    rows = [(labels[day % 3], sentence, f"Day {day} was short.") for day, sentence in enumerate(plain_sentences(60))]
    write_table("nli-train.tsv", [("label", "sentence1", "sentence2"), *rows])
    Path("nli-train.tsv.xz").write_bytes(lzma.compress(Path("nli-train.tsv").read_bytes()))


def write_korean() -> None:
    """A Wikipedia of 120 short articles, and film reviews."""
    towns = ("서울", "부산", "대구", "인천", "광주", "대전", "울산", "수원")
    things = ("학교", "도서관", "시장", "공원", "다리", "항구", "극장")
    built = product(range(1900, 1930), towns, things)
    lines = [f"{town}에는 {year}년에 세워진 {thing} 있다." for year, town, thing in built]
    lines.insert(20, "배우들의 연기가 좋았다, 이야기는 지루했다, 음악이 재미있었다.")  # not in the validation article
    articles = ["\n".join(lines[start : start + 14]) for start in range(0, len(lines), 14)]
    text = "".join(f'<doc id="{n}" title="T">\nT\n\n{body}\n\n</doc>\n' for n, body in enumerate(articles))
    Path("kowiki.xz").write_bytes(lzma.compress(text.encode()))
    said = ("이야기는 지루했다", "배우들의 연기가 재미있었다", "음악이 지루했다", "이야기가 좋았다")
    rows = [(n, f"{said[n % 4]}, {said[n % 3]}", n % 2) for n in range(60)]
    for part, some in (("train", rows[:40]), ("test", rows[40:])):
        write_table(f"ratings_{part}.txt", [("id", "document", "label"), *some])


def name_things() -> None:
    """Give things the other names that pages have for them."""
    for folder in ("runs", "ext"):
        Path(folder).mkdir()
    for thing, names in {
        "text.txt": "TEXT INPUT",
        "run": "MODEL RUN RUN2 other quickstart/pretraining runs/wiki ext/model-means",
        "run/model": "SOURCE base",
        "sst2": "runs/sst2",
        "pair": "PAIR",
        "runs": "DIR",
        "corpus": "CORPUS mixed corpus-learn quickstart/corpus",
        "heldout": "ext/corpus-extended",
        "tok/vocab.txt": "vocab.txt bert-base-multilingual-cased-vocab.txt bert-base-uncased-vocab.txt",
        "data": "DATA",
        "data/glue/MNLI": "MNLI",
        "data/glue/RTE": "RTE",
        "data/squad/dev-v1.1.json": "dev-v1.1.json",
        "data/squad/dev-v2.0.json": "dev-v2.0.json",
        "data/swag/codah-val.csv": "questions.csv",
        f"{ROOT}/tests/fixtures/google/pretrained": "uncased_L-12_H-768_A-12",
    }.items():
        for name in names.split():
            Path(name).symlink_to(Path(thing).absolute())
    shutil.copytree("run/model", "minilm")
    shape = json.loads(Path("minilm/config.json").read_text("utf-8"))
    sizes = {"hidden": shape["hidden_size"], "positions": shape["max_position_embeddings"]}
    write_vector_settings(Path("minilm"), VectorSettings(normalize=True), **sizes)
