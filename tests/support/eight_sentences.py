"""Eight sentences with a person and a town in each, in our own words, to which a small model is overfitted."""

from pathlib import Path
from typing import Any

from bertwright.tasks.tagging.conll import Sentences
from bertwright.text.wordpiece import Tokenizer, train_wordpiece

CLS, SEP, UNK = 1, 2, 3
PEOPLE = ("Ada", "Bruno", "Chiara", "Dmitri", "Elif", "Farid", "Gro", "Hana")
TOWNS = ("Oslo", "Porto", "Quito", "Riga", "Sofia", "Turku", "Ulm", "Vaduz")


def names_vocabulary(text: Path, *, cased: bool = False) -> Tokenizer:
    """500 pieces of the text and the names."""
    names = " ".join((*PEOPLE, *TOWNS))
    return train_wordpiece([text.read_text("utf-8"), *[names] * 3], vocab_size=500, cased=cased)


def sentence(row: int) -> tuple[list[str], list[str]]:
    """Return one of eight sentences, with a person of three words and a town."""
    words = [PEOPLE[row], "van", TOWNS[-1 - row], "leaves", TOWNS[row], "today", "."]
    return words, ["B-PER", "I-PER", "I-PER", "O", "B-LOC", "O", "O"]


def tagging_example(task: Any, folder: Path) -> dict[str, Any]:
    """Return eight records of ner or pos as the fields of an `Example` of the conformance suite."""
    plain = {"B-PER": "NAME", "I-PER": "NAME", "B-LOC": "PLACE", "O": "OTHER"}
    rows = [
        (words, [plain[t] for t in tags] if task.scheme == "plain" else tags) for words, tags in map(sentence, range(8))
    ]

    def write(folder: Path, ending: str) -> Path:
        folder.mkdir(parents=True)
        text = "".join("".join(f"{w}\t{t}\n" for w, t in zip(*row, strict=True)) + "\n" for row in rows)
        (folder / "dev.conll").write_text(text, "utf-8")
        (folder / "train.conll").write_text(text + ending, "utf-8")
        return folder

    def answers(path: Path) -> list[Any]:
        blocks = path.read_text("utf-8").strip("\n").split("\n\n")
        return [[line.split("\t")[2] for line in block.split("\n")] for block in blocks]

    def answers_of(results: list[Any]) -> list[Any]:
        """The tags of the words that entities, or words with plain tags, lie on."""
        answers_of = []
        for (words, _), result in zip(rows, results, strict=True):
            tags, begin = ["O"] * len(words), 0
            for position, word in enumerate(words):
                for entity in result.entities:
                    if entity.start <= begin < entity.end:
                        mark = "" if task.scheme == "plain" else "B-" if entity.start == begin else "I-"
                        tags[position] = mark + entity.type
                begin += len(word) + 1
            answers_of.append(tags)
        return answers_of

    data = write(folder / "data", "")
    return {
        "data": data,
        "input_file": data / "dev.conll",
        "output": "answers.conll",
        "answers": answers,
        "right": [tags for _, tags in rows],
        "broken": write(folder / "broken", "lonely\n"),
        "inputs": [" ".join(words) for words, _ in rows],
        "answers_of": answers_of,
        "trouble": r"train\.conll:65: expected 2 columns, as on line 1, got 1",
    }


def made_of(words: list[list[str]], documents: list[int] | None = None, tags: Any = None) -> Sentences:
    return Sentences(
        "made up",
        tuple(map(tuple, words)),
        tags and tuple(map(tuple, tags)),
        tuple((number,) * max(1, len(row)) for number, row in enumerate(words, 1)),
        documents and tuple(documents),
    )


class AlphabetLetters:
    """A tokenizer for tests: one piece per letter, and nothing for what is no letter."""

    begin_id, end_id, unk_id = CLS, SEP, UNK
    row_frame = ((CLS,), (SEP,), (SEP,))

    def ids(self, texts):
        return [[ord(letter) for letter in text if letter.isalpha()] for text in texts]

    word_ids = ids
