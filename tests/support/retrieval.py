"""A small folder in BEIR's layout, in our own words."""

import json
from pathlib import Path

DOCUMENTS = {
    "d1": ("A ship.", "It sails on the sea."),
    "d10": ("", "Rain falls on the roof of the house."),
    "d2": ("", "The teacher reads a book."),
}
QUERIES = {"q1": "ship on the sea", "q2": "rain on the house", "q3": "a book"}


def write_beir(folder: Path) -> Path:
    """Write corpus, queries and qrels/test.tsv; return the folder."""
    (folder / "qrels").mkdir(parents=True)
    documents = [{"_id": id, "title": title, "text": text} for id, (title, text) in DOCUMENTS.items()]
    queries = [{"_id": id, "text": text} for id, text in QUERIES.items()]
    for name, records in (("corpus.jsonl", documents), ("queries.jsonl", queries)):
        (folder / name).write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
    lines = ["query-id\tcorpus-id\tscore", "q1\td1\t1", "q2\td10\t2", "q2\td2\t0"]
    (folder / "qrels" / "test.tsv").write_text("\n".join(lines) + "\n", "utf-8")
    return folder
