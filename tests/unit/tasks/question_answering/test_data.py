"""SQuAD's files: what is read, which files of a folder are meant, and every record that is wrong named with its id."""

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from bertwright.errors import InputError
from bertwright.tasks.question_answering.data import (
    read_labelled,
    read_questions,
    read_unlabelled,
)
from bertwright.tasks.question_answering.files import dev_questions_file, train_questions_file
from bertwright.tasks.question_answering.spec import SQUAD1, SQUAD2, SpanTask
from bertwright.tasks.spec import get_spec, with_reading

CONTEXT = "The ferry 渡し leaves at dawn, and at dawn the café opens 😀 too."


def squad(*entries: dict[str, Any], version: str = "1.1", context: str = CONTEXT) -> dict[str, Any]:
    return {"version": version, "data": [{"title": "t", "paragraphs": [{"context": context, "qas": list(entries)}]}]}


def squad_question(name: str = "q1", **change: Any) -> dict[str, Any]:
    entry = {"id": name, "question": "When?", "answers": [{"text": "at dawn", "answer_start": 20}], **change}
    return {key: value for key, value in entry.items() if value is not ...}


def test_the_settings_are_the_papers() -> None:
    for name, null in (("squad1", False), ("squad2", True)):
        task = get_spec(name)
        assert task.model_dump() == {
            "name": name,
            "max_length": 384,
            "stride": 128,
            "question": 64,
            "longest_answer": 30,
            "n_best": 20,
            "null": null,
        }


def test_questions_are_read_with_all_answers(write: Any) -> None:
    two = [{"text": "at dawn", "answer_start": 20}, {"text": "at dawn", "answer_start": 33}]
    questions = read_questions(write("a.json", squad(squad_question(), squad_question("q2", answers=two))))
    assert questions.version == "1.1"
    assert [question.id for question in questions.items] == ["q1", "q2"]
    assert questions.items[1].answers == (("at dawn", 20), ("at dawn", 33))
    assert questions.items[0].context is questions.items[1].context


@pytest.mark.parametrize(
    ("file", "version"),
    [
        (squad(squad_question()), "1.1"),
        (squad(squad_question(), version="KorQuAD_v1.0"), "1.1"),
        (squad(squad_question(), version="v2.0"), "2.0"),
        (squad(squad_question(), version=2), "2.0"),
        (squad(squad_question(), version="2021-05"), "1.1"),
        (squad(squad_question(is_impossible=False)), "2.0"),
        (squad(squad_question(), squad_question("q2", answers=[])), "2.0"),
        ({"data": squad(squad_question())["data"]}, "1.1"),
    ],
)
def test_the_version_follows_from_the_content(write: Any, file: Any, version: str) -> None:
    assert read_questions(write("a.json", file)).version == version


BAD: dict[str, tuple[Any, str]] = {
    "an answer elsewhere": (
        squad(squad_question(answers=[{"text": "at dawn", "answer_start": 21}])),
        r"a\.json: question q1: expected the answer 'at dawn' at character 21 .*; the context has it at character 20",
    ),
    "an answer nowhere": (
        squad(squad_question(answers=[{"text": "At dawn", "answer_start": 20}])),
        r"a\.json: question q1: expected the answer 'At dawn' at character 20 .*; the context does not have it",
    ),
    "an answer beyond the end": (
        squad(squad_question(answers=[{"text": "too.", "answer_start": 999}])),
        r"a\.json: question q1: expected the answer 'too\.' at character 999 .*; the context has it at character 58",
    ),
    "a place before the beginning": (
        squad(squad_question(answers=[{"text": ".", "answer_start": -1}])),
        r"a\.json: question q1: expected a number from 0 on in 'answer_start', got -1",
    ),
    "a place that is none": (
        squad(squad_question(answers=[{"text": "at dawn", "answer_start": "20"}])),
        r"a\.json: question q1: expected a number from 0 on in 'answer_start', got 20",
    ),
    "a truth value for a place": (
        squad(squad_question(answers=[{"text": "at dawn", "answer_start": True}])),
        r"a\.json: question q1: expected a number from 0 on in 'answer_start', got True",
    ),
    "no place": (
        squad(squad_question(answers=[{"text": "at dawn"}])),
        r"a\.json: question q1: expected a number from 0 on in 'answer_start', it is missing",
    ),
    "an empty answer": (
        squad(squad_question(answers=[{"text": " ", "answer_start": 3}])),
        r"a\.json: question q1: expected a text in 'text', got an empty one",
    ),
    "answers that are no list": (
        squad(squad_question(answers={"text": "x"})),
        r"a\.json: question q1: expected a list in 'answers', got \{'text': 'x'\}",
    ),
    "an answer that is text": (
        squad(squad_question(answers=["at dawn"])),
        r"a\.json: question q1\.answers\[0\]: expected an object, got at dawn",
    ),
    "no answers": (
        squad(squad_question(answers=...)),
        r"a\.json: question q1: expected a list in 'answers', it is missing",
    ),
    "impossible, yet answered": (
        squad(squad_question(is_impossible=True)),
        r"q1: is_impossible is true, but there are answers",
    ),
    "possible, yet unanswered": (
        squad(squad_question(is_impossible=False, answers=[])),
        r"question q1: is_impossible is false, but there are no answers",
    ),
    "neither true nor false": (
        squad(squad_question(is_impossible="no")),
        r"a\.json: question q1: expected true or false in 'is_impossible', got no",
    ),
    "an id twice": (
        squad(squad_question(), squad_question("q2"), squad_question()),
        r"a\.json: question q1: duplicate id",
    ),
    "no id": (
        squad(squad_question(), squad_question(id=...)),
        r"a\.json: data\[0\]\.paragraphs\[0\]\.qas\[1\]: expected a text in 'id', it is missing",
    ),
    "a number for an id": (
        squad(squad_question(id=7)),
        r"a\.json: data\[0\]\.paragraphs\[0\]\.qas\[0\]: expected a text in 'id', got 7",
    ),
    "an empty question": (
        squad(squad_question(question="\t ")),
        r"a\.json: question q1: expected a text in 'question', got an empty one",
    ),
    "no question": (
        squad(squad_question(question=None)),
        r"a\.json: question q1: expected a text in 'question', got None",
    ),
    "half a surrogate pair": (
        json.dumps(squad(squad_question(question="so \ud83d"))),
        r"a\.json: question q1: expected a text in 'question', got half of a surrogate pair \(\\ud800 to",
    ),
    "an empty context": (
        squad(squad_question(), context=" \n"),
        r"a\.json: data\[0\]\.paragraphs\[0\]: expected a text in 'context', got an empty one",
    ),
    "no questions": (squad(), r"a\.json: expected questions, found none"),
    "no qas": (
        {"data": [{"paragraphs": [{"context": "x"}]}]},
        r"a\.json: data\[0\]\.paragraphs\[0\]: expected a list in 'qas', it is missing",
    ),
    "no paragraphs": ({"data": [{}]}, r"a\.json: data\[0\]: expected a list in 'paragraphs', it is missing"),
    "no article": ({"data": ["x"]}, r"a\.json: data\[0\]: expected an object, got x"),
    "no data": ({"version": "1.1"}, r"a\.json: expected SQuAD's layout, an object with a list 'data'"),
    "a list": ([], r"a\.json: expected SQuAD's layout, an object with a list 'data'"),
    "no JSON": ('{"data": [\n]', r"a\.json:2: not valid JSON"),
    "a name twice": ('{"data": [], "data": []}', r"a\.json: 'data' is there twice in one object"),
    "a table": (
        "id,question,context\n1,Why?,Because.",
        r"a\.json: expected SQuAD's JSON, or JSON lines or Parquet with",
    ),
    "too deep": ("[" * 200_000, r"a\.json:1: not valid JSON"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_named_with_its_record(write: Any, name: str) -> None:
    content, words = BAD[name]
    with pytest.raises(InputError, match=words):
        read_questions(write("a.json", content))


def test_files_that_are_none_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.json: there is no such file"):
        read_questions(tmp_path / "nowhere.json")
    with pytest.raises(InputError, match="expected a file, got a folder"):
        read_questions(tmp_path)
    (tmp_path / "latin.json").write_bytes('{"data": "é"}'.encode("latin-1"))
    with pytest.raises(InputError, match=r"latin\.json: not UTF-8 text \(byte 11\)"):
        read_questions(tmp_path / "latin.json")


def test_a_folder_may_hold_both_versions(write: Any, tmp_path: Path) -> None:
    one, two = squad(squad_question()), squad(squad_question(is_impossible=False))
    for name, content in (("train-v1.1-part", one), ("dev", one), ("train-large", two), ("dev-v2.0", two)):
        write(f"{name}.json", content)
    write("train.notes.txt", "not a file of questions")
    assert train_questions_file(SQUAD1, tmp_path).name == "train-v1.1-part.json"
    assert dev_questions_file(SQUAD1, tmp_path) == tmp_path / "dev.json"
    assert train_questions_file(SQUAD2, tmp_path).name == "train-large.json"
    assert dev_questions_file(SQUAD2, tmp_path) == tmp_path / "dev-v2.0.json"


def test_doubt_about_files_is_raised(write: Any, tmp_path: Path) -> None:
    first = write("train-v1.1.json", squad(squad_question()))
    with pytest.raises(
        InputError,
        match=r"expected train\*\.json of SQuAD 2\.0 \(or \.jsonl, \.parquet\), found train-v1\.1\.json \(SQuAD 1\.1\)",
    ):
        train_questions_file(SQUAD2, tmp_path)
    assert dev_questions_file(SQUAD1, tmp_path) is None
    with pytest.raises(
        InputError,
        match=r"expected dev\*\.json of SQuAD 1\.1 \(or \.jsonl, \.parquet\), found no such name; give",
    ):
        dev_questions_file(SQUAD1, tmp_path, needed=True)
    write("train-more.json", squad(squad_question()))
    with pytest.raises(
        InputError,
        match=r"expected one file of SQuAD 1\.1, found train-more\.json, train-v1\.1\.json; keep one",
    ):
        train_questions_file(SQUAD1, tmp_path)
    assert train_questions_file(SQUAD1, first) == first
    assert dev_questions_file(SQUAD1, first) is None
    assert dev_questions_file(SQUAD1, first, needed=True) == first
    with pytest.raises(
        InputError, match=r"train-v1\.1\.json: expected SQuAD 2\.0 for squad2, got SQuAD 1\.1; use the task squad1"
    ):
        read_labelled(SQUAD2, first)
    assert len(read_labelled(SQUAD1, first)) == 1


LINE = {"id": "x", "question": "When?", "context": CONTEXT}


def test_questions_are_asked_in_either_layout(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    layouts = {
        "official.json": json.dumps(squad(squad_question("x", answers=...))),
        "wrong-answers.json": json.dumps(squad(squad_question("x", answers=[{"text": "not there"}]))),
        "pretty.json": json.dumps(squad(squad_question("x")), indent=1),
        "marked.json": "\ufeff" + json.dumps(squad(squad_question("x"))),
        "lines.jsonl": json.dumps(LINE) + "\n\n",
        "lines-crlf.jsonl": json.dumps(LINE) + "\r\n",
    }
    for name, content in layouts.items():
        (question,) = read_unlabelled(write(name, content)).items
        assert (question.id, question.text, question.context, question.answers) == ("x", "When?", CONTEXT, ())
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content.encode())))
        assert read_unlabelled("-").items == (question,)
    lines = [{**LINE, "question": "A?"}, {"question": "B?", "context": "b"}, {"question": "C?", "context": "c"}]
    several = read_unlabelled(write("several.jsonl", "\n".join(map(json.dumps, lines))))
    assert [question.id for question in several.items] == ["x", "2", "3"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", r"a\.jsonl: expected questions, got an empty file"),
        ("\n{}", r"a\.jsonl: expected questions, got an empty first line"),
        (
            "question\tcontext\nWhy?\tBecause.",
            r"a\.jsonl: expected SQuAD's JSON, or JSON lines or Parquet with",
        ),
        (json.dumps(LINE) + '\n{"id": "y"', r"a\.jsonl:2: not valid JSON"),
        ('{"id": "y"\n' + json.dumps(LINE), r"a\.jsonl:1: not valid JSON"),
        (json.dumps(LINE) + "\n\n" + json.dumps({**LINE, "id": "y"}), r"a\.jsonl:2: not valid JSON"),
        (json.dumps(LINE) + "\n" + json.dumps(LINE), r"a\.jsonl:2: duplicate id 'x'"),
        (json.dumps({**LINE, "id": "2"}) + '\n{"question": "B?", "context": "b"}', r"a\.jsonl:2: duplicate id '2'"),
        ('{"id": "y", "id": "z"}\n' + json.dumps(LINE), r"a\.jsonl:1: 'id' is there twice in one object"),
        (json.dumps(LINE) + '\n{"id": "y", "id": "z"}', r"a\.jsonl:2: 'id' is there twice in one object"),
        (json.dumps(LINE) + "\n[1]", r'a\.jsonl:2: expected an object \{"question", "context"\}, got \[1\]'),
        ('{"question": "When?"}', r"a\.jsonl:1: expected a text in 'context', it is missing"),
        (json.dumps({**LINE, "question": ""}), r"a\.jsonl:1: expected a text in 'question', got an empty one"),
        (json.dumps({**LINE, "id": 5}), r"a\.jsonl:1: expected a text in 'id', got 5"),
    ],
)
def test_lines_that_are_wrong_are_named(write: Any, content: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_unlabelled(write("a.jsonl", content))


def test_the_real_files_are_read(shared_data: Path) -> None:
    expected = {
        "train-v1.1-part.json": (8911, "1.1"),
        "dev-v1.1.json": (10570, "1.1"),
        "train-v2.0-part.json": (4719, "2.0"),
        "dev-v2.0.json": (11873, "2.0"),
    }
    folder = shared_data / "squad"
    for name, (count, version) in expected.items():
        questions = read_questions(folder / name)
        assert (len(questions), questions.version) == (count, version)
    assert train_questions_file(SQUAD2, folder).name == "train-v2.0-part.json"
    assert dev_questions_file(SQUAD1, folder) == folder / "dev-v1.1.json"


@pytest.mark.parametrize(
    ("context", "answer", "words"),
    [
        (
            "In New\u00a0York it rains.",
            {"text": "New York", "answer_start": 3},
            r"q1: .*it has U\+00A0 \(NO-BREAK SPACE\), and the answer has U\+0020 \(SPACE\); write the answer",
        ),
        (
            "In New York  it rains.",
            {"text": "York it", "answer_start": 7},
            r"at character 12 of the context it has U\+0020 \(SPACE\), and the answer has U\+0069 \(LATIN",
        ),
        (
            "A cafe\u0301 is open.",
            {"text": "caf\u00e9", "answer_start": 2},
            r"at character 5 of the context it has U\+0065 \(LATIN SMALL LETTER E\), and the answer has U\+00E9",
        ),
        (  # the character counts of the other normal form are shifted
            "Cafe\u0301 and cafe\u0301 are open.",
            {"text": "caf\u00e9 are", "answer_start": 9},
            r"the context has it at character 10, .* at character 13 of the context it has U\+0065",
        ),
        ("One\nline", {"text": "One line", "answer_start": 0}, r"it has U\+000A \(a control character\), and "),
        ("In New York", {"text": "In Old York", "answer_start": 0}, "; the context does not have it"),
    ],
)
def test_an_answer_in_another_form_is_named_by_its_character(
    write: Any, context: str, answer: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        read_questions(write("a.json", squad(squad_question(answers=[answer]), context=context)))


ASKED = {"title": "t", "context": CONTEXT}
HUB: list[dict[str, Any]] = [
    {"id": "a", **ASKED, "question": "When?", "answers": {"text": ["at dawn"] * 2, "answer_start": [20, 33]}},
    {"id": "b", **ASKED, "question": "Why?", "answers": {"text": [], "answer_start": []}},
]


@pytest.mark.parametrize("name", ["train.jsonl", "train.json", "train-00000-of-00001.parquet"])
def test_the_columns_of_the_hub_are_squad_data(tmp_path: Path, name: str) -> None:
    """Two questions, of which the second has no answer, are SQuAD 2.0; the first alone is SQuAD 1.1."""

    def save(rows: list[dict[str, Any]], folder: str) -> Path:
        path = tmp_path / folder / name
        path.parent.mkdir()
        if name.endswith("parquet"):
            parquet.write_table(pa.Table.from_pylist(rows), path)
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
        return path

    for task, rows in ((SQUAD2, HUB), (SQUAD1, HUB[:1])):
        path = save(rows, task.name)
        questions = read_labelled(task, path)
        assert [(question.id, question.text, question.context) for question in questions.items] == [
            (row["id"], row["question"], CONTEXT) for row in rows
        ]
        gold = [(("at dawn", 20), ("at dawn", 33)), ()]
        assert [question.answers for question in questions.items] == gold[: len(rows)]
        assert [question.answers for question in read_unlabelled(path).items] == [()] * len(rows)
        assert train_questions_file(task, path.parent) == path
        chosen = with_reading(task, input_format="parquet" if name.endswith("parquet") else "jsonl", on_error="stop")
        assert read_labelled(chosen, path.rename(path.with_name("questions.dat"))).items == questions.items


def test_a_folder_of_the_hub_has_validation_files(write: Any, tmp_path: Path) -> None:
    line = json.dumps(HUB[0]) + "\n"
    write("validation.jsonl", line)
    assert dev_questions_file(SQUAD1, tmp_path) == tmp_path / "validation.jsonl"
    write("dev-v1.1.json", squad(squad_question()))
    assert dev_questions_file(SQUAD1, tmp_path) == tmp_path / "dev-v1.1.json"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"answers": {"text": ["at dawn"]}}, r"a\.jsonl:1: answers: expected a list in 'answer_start', it is missing"),
        ({"answers": {"text": ["at dawn"], "answer_start": []}}, r"a\.jsonl:1: answers: expected as many num"),
        ({"answers": {"text": ["dawn"], "answer_start": [0]}}, r"a\.jsonl:1: expected the answer 'dawn' at char"),
        ({"answers": None}, r"a\.jsonl:1: expected a list in 'answers', got None"),
        ({"context": "\u200b\0"}, r"a\.jsonl:1: expected a text in 'context', got one without a visible"),
    ],
)
def test_rows_of_the_hub_are_checked(write: Any, change: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_questions(write("a.jsonl", json.dumps({**HUB[0], **change}) + "\n"))


@pytest.mark.parametrize("end", [10, 60, -1, -4, -30])
def test_a_file_that_was_cut_short_is_named_so(write: Any, end: int) -> None:
    with pytest.raises(InputError, match=r"a\.json:1: not valid JSON: .*; the file ends in the middle "):
        read_questions(write("a.json", json.dumps(squad(squad_question()))[:end]))
    with pytest.raises(InputError, match=r"a\.json:1: not valid JSON: Extra data$"):
        read_questions(write("a.json", json.dumps(squad(squad_question())) + "}"))
    with pytest.raises(InputError, match=r"expected SQuAD's layout.*jq -c '\.\[\]' makes JSON lines of a JSON list"):
        read_questions(write("a.json", HUB))


def skipping(task: SpanTask) -> SpanTask:
    return with_reading(task, input_format="auto", on_error="skip")


def hub_row(name: str, **change: Any) -> dict[str, Any]:
    """A row in the Hub's layout."""
    context = "Ada crossed the lake at dawn."
    row = {"id": name, "question": "Who?", "context": context, "answers": {"text": ["Ada"], "answer_start": [0]}}
    return {**row, **change}


BAD_ROWS: dict[str, tuple[Any, str]] = {
    "no question": (hub_row("b", question=" "), "without a usable 'question'"),
    "no context": (hub_row("b", context=None), "without a usable 'context'"),
    "another answer": (
        hub_row("b", answers={"text": ["Bo"], "answer_start": [0]}),
        "with an answer that its passage does not have there",
    ),
    "uneven lists": (hub_row("b", answers={"text": ["Ada"], "answer_start": []}), "without a usable 'answers'"),
    "no answers": (hub_row("b", answers=None), "without a usable 'answers'"),
    "an id twice": (hub_row("a"), "with the id of another question"),
    "no object": (["a"], "that are no objects"),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_rows_that_cannot_be_used_are_left_out_and_counted(
    write: Any, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    row, reason = BAD_ROWS[name]
    path = write("train.jsonl", "".join(json.dumps(line) + "\n" for line in (hub_row("a"), row, hub_row("c"))))
    questions = read_labelled(skipping(SQUAD1), path)
    assert [question.id for question in questions.items] == ["a", "c"]
    assert questions.left_out == {reason: 1}
    messages = capsys.readouterr().err
    assert f"{path}: 1 question is left out: 1 {reason}" in messages
    assert f"left out: {path}:2: " in messages
    with pytest.raises(InputError, match=r"train\.jsonl:2: "):
        read_labelled(SQUAD1, path)


def test_lines_that_are_no_json_or_not_utf8_are_left_out(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    good = [json.dumps(hub_row(name)).encode() for name in "ab"]
    twice = good[0].replace(b'"Who?"', b'"Who?", "question": "Who?"')
    lines = [good[0], b'{"id": "x"', b'{"id": "\xff"}', twice, b"", good[1]]
    questions = read_labelled(skipping(SQUAD1), write("train.jsonl", b"\n".join(lines)))
    assert [question.id for question in questions.items] == ["a", "b"]
    assert questions.left_out == {"not valid JSON": 3, "not UTF-8 text": 1}
    assert "4 questions are left out: 3 not valid JSON, 1 not UTF-8 text" in capsys.readouterr().err
    # The file of a folder is found by its version, for which it is read too.
    folder = write("folder/train.jsonl", b"\n".join(lines)).parent
    assert train_questions_file(skipping(SQUAD1), folder) == folder / "train.jsonl"


@pytest.mark.parametrize(
    "first", [b'{"id": "x", "question": "a', b'{"id": "q"}', b"[1]", b"null", b'{"id": "\xff"}', b" "]
)
def test_a_first_line_that_is_wrong_is_left_out_too(write: Any, first: bytes) -> None:
    good = json.dumps(hub_row("a")).encode()
    questions = read_labelled(skipping(SQUAD1), write("train.jsonl", b"\n".join([first, good])))
    assert [question.id for question in questions.items] == ["a"]
    assert sum(questions.left_out.values()) == 1


def test_one_object_over_many_lines_is_read_whatever_its_name_says(write: Any) -> None:
    squad = {
        "version": "1.1",
        "data": [{"paragraphs": [{"context": "Ada swam.", "qas": [{"id": "a", "question": "?"}]}]}],
    }
    questions = read_unlabelled(write("a.jsonl", json.dumps(squad, indent=1)))
    assert [question.id for question in questions.items] == ["a"]


def test_questions_of_squads_layout_are_left_out(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def qa(name: Any, **change: Any) -> dict[str, Any]:
        return {"id": name, "question": "Who?", "answers": [{"text": "Ada", "answer_start": 0}], **change}

    paragraphs = [
        {"context": "Ada swam.", "qas": [qa("a"), qa("b", answers=[{"text": "Bo", "answer_start": 0}]), 7, qa("a")]},
        {"context": " ", "qas": [qa("c"), qa("d")]},
        {"context": "Ada sang.", "qas": [qa("e", is_impossible=True), qa("f")]},
    ]
    path = write("train.json", {"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]})
    questions = read_labelled(skipping(SQUAD1), path)
    assert [(question.id, question.context) for question in questions.items] == [("a", "Ada swam."), ("f", "Ada sang.")]
    assert questions.left_out == {
        "without a usable 'context'": 2,
        "with an answer that its passage does not have there": 1,
        "that are no objects": 1,
        "with the id of another question": 1,
        "with answers that contradict 'is_impossible'": 1,
    }
    assert f"left out: {path}: question b: expected the answer 'Bo' at character 0" in capsys.readouterr().err


def test_what_is_no_row_is_refused_also_where_rows_are_left_out(write: Any) -> None:
    bad = write("a.jsonl", json.dumps(hub_row("a", question="")) + "\n")
    with pytest.raises(
        InputError, match=r"expected questions, found none; 1 question is left out: .*; the first: .*:1"
    ):
        read_labelled(skipping(SQUAD1), bad)
    with pytest.raises(InputError, match=r"b\.json:1: not valid JSON"):
        read_labelled(skipping(SQUAD1), write("b.json", '{"data": ['))
    with pytest.raises(InputError, match=r"c\.json: not UTF-8 text"):
        read_labelled(skipping(SQUAD1), write("c.json", b'{"data": [], "x": "\xff"}'))
    with pytest.raises(InputError, match=r"d\.json: data\[0\]: expected a list in 'paragraphs'"):
        read_labelled(skipping(SQUAD1), write("d.json", {"data": [{"paragraphs": 3}]}))
    with pytest.raises(InputError, match=r"use the task squad2"):
        read_labelled(skipping(SQUAD1), write("e.jsonl", json.dumps(hub_row("a", is_impossible=False)) + "\n"))
