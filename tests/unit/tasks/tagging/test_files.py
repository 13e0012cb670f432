"""Answers of a tagger: one more column or field, entities with their positions in a text; and the files it refuses."""

import io
import json
import sys
import unicodedata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bertwright.errors import InputError
from bertwright.finetuning.evaluate import evaluate_task, predict_file
from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.interop.import_model import import_model
from bertwright.model.folder import open_model
from bertwright.serving.predictor import load
from bertwright.tasks.classification.spec import get_task
from bertwright.tasks.spec import get_spec, with_reading
from bertwright.tasks.tagging.conll import Sentences
from bertwright.tasks.tagging.entities import entities_of
from bertwright.tasks.tagging.model import windows_of
from bertwright.tasks.tagging.spec import NER, POS, TaggingTask, possible, with_tag_columns
from bertwright.text.wordpiece import Tokenizer, train_wordpiece
from tests.support.eight_sentences import names_vocabulary, sentence, tagging_example

SHORT = FinetuneSettings(epochs=30, batch_size=4, learning_rate=1e-3, max_length=40, threads=1)


@pytest.fixture(scope="module")
def tagger(tmp_path_factory: pytest.TempPathFactory, own_text: Path) -> str:
    """A model overfitted to the eight sentences, with documents around them."""
    folder = tmp_path_factory.mktemp("tagger")
    names_vocabulary(own_text).save(folder / "tok")
    rows = [
        {"tokens": words, "tags": tags, "document": row // 2}
        for row, (words, tags) in enumerate(map(sentence, range(8)))
    ]
    (folder / "data").mkdir()
    for name in ("train", "dev"):
        (folder / "data" / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = finetune(
        SHORT, NER, model="random:tiny", data=folder / "data", out=folder / "run", tokenizer=folder / "tok"
    )
    assert result["mean"] == 1.0
    assert open_model(str(folder / "run")).extra["task"]["context"] == "documents"
    return str(folder / "run")


def predict_text(model: str, source: Path, **flags: Any) -> str:
    target = source.parent / f"answers-{source.name}"
    predict_file(model, str(source), str(target), **flags)
    return target.read_bytes().decode()


def test_columns_come_back_with_one_more(tagger: str, write: Any) -> None:
    """Comments, blank lines, document lines, line ends and other columns as they were."""
    words, tags = sentence(2)
    body = "".join(f"{word}\tx\t?\r\n" for word in words)
    text = f"-DOCSTART-\t-X-\tO\r\n\r\n# said\r\n{body}\r\n \r\n{body}".removesuffix("\r\n")
    tagged = "".join(f"{word}\tx\t?\t{tag}\r\n" for word, tag in zip(words, tags, strict=True))
    expected = f"-DOCSTART-\t-X-\tO\tO\r\n\r\n# said\r\n{tagged}\r\n \r\n{tagged}".removesuffix("\r\n") + "\n"
    assert predict_text(tagger, write("a.conll", text)) == expected
    address = "#\thttps://example.org/1\t[2010-01-01]\n"
    pair = "".join(f"{word}\tx\n" for word in words)
    expected = address + "".join(f"{word}\tx\t{tag}\n" for word, tag in zip(words, tags, strict=True))
    assert predict_text(tagger, write("d.conll", address + pair)) == expected
    alone = "".join(f"{word}\n" for word in words)
    expected = "".join(f"{word} {tag}\n" for word, tag in zip(words, tags, strict=True))
    assert predict_text(tagger, write("b.txt", alone)) == expected
    named = "".join(f"7 {word} \n" for word in words)
    expected = "".join(f"7 {word} {tag}\n" for word, tag in zip(words, tags, strict=True))
    assert predict_text(tagger, write("c.conll", named), text=("2",)) == expected


def test_rows_of_conllu_that_are_no_words_get_a_line(tagger: str, write: Any) -> None:
    words, tags = sentence(0)
    rows = ["1-2\tx\t_\t_", *(f"{position}\t{word}\t_\t_" for position, word in enumerate(words, 1))]
    expected = [f"{row}\t{tag}" for row, tag in zip(rows, ["_", *tags], strict=True)]
    assert predict_text(tagger, write("a.conllu", "\n".join(rows) + "\n")).splitlines() == expected


def test_json_lines_get_a_field(tagger: str, write: Any) -> None:
    words, tags = sentence(5)
    rows = [{"id": "ü", "tokens": words}, {"tokens": words, "tags": ["?"] * 7}, {"tokens": []}]
    source = write("a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    assert [json.loads(line) for line in predict_text(tagger, source).splitlines()] == [
        {**rows[0], "tags": tags},
        {**rows[1], "predicted_tags": tags},
        {"tokens": [], "tags": []},
    ]
    twice = write("c.jsonl", json.dumps({"tokens": words, "tags": ["?"] * 7, "predicted_tags": ["?"] * 7}) + "\n")
    with pytest.raises(InputError, match=r"c\.jsonl:1: the field 'predicted_tags' exists already; rename it first"):
        predict_text(tagger, twice)
    only = write("b.jsonl", '{"tokens": []}\n')
    assert json.loads(predict_text(tagger, only)) == {"tokens": [], "tags": []}


def test_infinite_numbers_of_other_fields_are_texts(tagger: str, write: Any) -> None:
    line = predict_text(tagger, write("a.jsonl", '{"tokens": ["Ada"], "weight": Infinity, "more": [NaN]}\n'))
    fields = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert (fields["weight"], fields["more"]) == ("Infinity", ["NaN"])


@pytest.mark.parametrize(
    ("source", "target", "words"),
    [
        (
            "a.conll",
            "o.jsonl",
            r"o\.jsonl: [^:]*a\.conll has columns of words, which are kept; use --raw for texts",
        ),
        (
            "a.conll",
            "o.json.gz",
            r"o\.json\.gz: [^:]*a\.conll has columns of words, which are kept; use --raw for texts",
        ),
        ("a.jsonl", "o.tsv", r"o\.tsv: expected a file \.jsonl, because JSON lines are written"),
        ("a.jsonl", "o.conllu.xz", r"o\.conllu\.xz: expected a file \.jsonl, because JSON lines are written"),
        ("raw.txt", "o.conll", r"o\.conll: expected a file \.jsonl, because JSON lines are written"),
        ("a.conll", "folder", "folder: expected a file or - for standard output, got a folder"),
    ],
)
def test_an_ending_that_says_otherwise_is_refused(
    tagger: str, tmp_path: Path, source: str, target: str, words: str
) -> None:
    (tmp_path / "a.conll").write_text("Ada O\n")
    (tmp_path / "a.jsonl").write_text('{"tokens": ["Ada"]}\n')
    (tmp_path / "raw.txt").write_text("Ada leaves.\n")
    (tmp_path / "folder").mkdir()
    before = sorted(tmp_path.iterdir())
    with pytest.raises(InputError, match=words):
        predict_file(tagger, str(tmp_path / source), str(tmp_path / target), raw=source == "raw.txt")
    assert sorted(tmp_path.iterdir()) == before


def test_a_sentence_of_any_length_has_all_its_answers(tagger: str, write: Any) -> None:
    words, tags = sentence(1)
    lines = predict_text(tagger, write("a.conll", "".join(f"{word}\n" for word in words * 100))).splitlines()
    assert [line.split(" ")[0] for line in lines] == words * 100
    assert sum(line.split(" ")[1] == tag for line, tag in zip(lines, tags * 100, strict=True)) > 500


def test_standard_input_and_output(tagger: str, monkeypatch: pytest.MonkeyPatch, capsysbinary: Any) -> None:
    words, tags = sentence(3)
    for content, flags, expected in (
        ("".join(f"{word}\n" for word in words), {}, "".join(f"{w} {t}\n" for w, t in zip(words, tags, strict=True))),
        (json.dumps({"tokens": words}), {}, json.dumps({"tokens": words, "tags": tags}) + "\n"),
        ("\u200d\n", {"raw": True}, '{"text": "\u200d", "entities": []}\n'),
    ):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content.encode())))
        predict_file(tagger, "-", "-", **flags)
        assert capsysbinary.readouterr().out.decode() == expected


@pytest.mark.parametrize("name", ["a.txt", "-"])
def test_plain_text_is_not_taken_for_columns(tagger: str, write: Any, monkeypatch: Any, name: str) -> None:
    source = write("a.txt", "Ada leaves Oslo today\n")
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(source.read_bytes())))
    input_name = str(source) if name != "-" else "-"
    with pytest.raises(
        InputError,
        match=r":1: 'Ada leaves Oslo today' may be plain text or a row of columns; use --raw",
    ):
        predict_file(tagger, input_name, "-")
    assert predict_text(tagger, write("b.conll", "Ada NNP\n")).startswith("Ada NNP ")  # its name says what it is
    assert predict_text(tagger, write("b.txt", "Ada B-PER\nx O\n")).startswith("Ada B-PER ")  # and so do tags


RAW = [
    "Ada van Vaduz leaves Oslo today.",
    "",
    "  Bruno\u00a0van Ulm\u200b leaves   Porto today .",
    "東京、Chia\u0301ra van Tu\u0308rku leaves Qu\u00edto\u0301 today. \U0001f642",
    '{"Dmitri van Sofia leaves Riga today."}',
]


def test_entities_lie_where_they_stand_in_the_text(tagger: str, write: Any) -> None:
    """With accents, marks of their own, odd spaces and other scripts before them: offsets cut the text exactly."""
    rows = [json.loads(line) for line in predict_text(tagger, write("a.txt", "\n".join(RAW)), raw=True).splitlines()]
    assert [row["text"] for row in rows] == RAW
    for row in rows:
        for entity in row["entities"]:
            assert entity["text"] == row["text"][entity["start"] : entity["end"]]
            assert 0 < entity["probability"] <= 1
    spans = [[(entity["type"], entity["text"]) for entity in row["entities"]] for row in rows]
    assert spans[0] == [("PER", "Ada van Vaduz"), ("LOC", "Oslo")]
    assert spans[1] == []
    assert spans[2] == [("PER", "Bruno\u00a0van Ulm"), ("LOC", "Porto")]
    assert ("PER", "Dmitri van Sofia") in spans[4]


@settings(deadline=None, max_examples=60)
@given(
    st.booleans(),
    st.lists(
        st.text(st.sampled_from("abÁe\u0301 \u0308가の.,\u203c\ufe0f\u200d\u00a0\U0001f642\t'"), max_size=20),
        max_size=4,
    ),
)
def test_words_lie_where_they_stand_in_a_text(
    own_text_words: dict[bool, Tokenizer], strip_accents: bool, texts: list[str]
) -> None:
    """Left to right, apart, all that is written, no blank and no marks alone, the same pieces as the whole text has."""
    words = own_text_words[strip_accents]
    for text, spans, whole in zip(texts, words.words(texts), words.ids(texts), strict=True):
        if strip_accents:  # else a mark in front of a word belongs to the one before, which changes both
            assert [id for ids in words.ids([text[a:b] for a, b in spans]) for id in ids] == whole
        inside = {position for begin, end in spans for position in range(begin, end)}
        assert inside >= {position for position, letter in enumerate(text) if unicodedata.category(letter)[0] in "LNPS"}
        at = 0
        for begin, end in spans:
            assert at <= begin < end
            assert not text[begin:end].isspace()
            assert not unicodedata.category(text[end : end + 1] or " ").startswith("M")
            at = end


@pytest.fixture(scope="module")
def own_text_words(own_text: Path) -> dict[bool, Tokenizer]:
    """By whether accents are taken off; where they are kept, a mark behind a symbol is a word to the rules."""
    text = own_text.read_text("utf-8")
    return {strip: train_wordpiece([text], vocab_size=400, strip_accents=strip) for strip in (False, True)}


def test_a_long_text_is_counted_as_all_that_is_read(tagger: str) -> None:
    """The queue of a service is limited by it."""
    pipeline = load(tagger, precision="fp32").pipeline
    for text in ("Ada leaves Oslo today.", "Ada van Vaduz leaves Oslo today. " * 40):
        words = [text[begin:end] for begin, end in pipeline.tokenizer.words([text])[0]]
        sentences = Sentences("", (tuple(words),), None, ((1,) * len(words),))
        rows = windows_of(pipeline.tokenizer, sentences, context="off", max_length=pipeline.max_length)
        assert [len(row) for row in pipeline.encode([text]).rows] == [len(ids) for ids in rows.ids]


def test_plain_tags_of_a_text_are_words(tmp_path: Path, cased_tokenizer: Path, write: Any) -> None:
    example = tagging_example(POS, tmp_path)
    finetune(SHORT, POS, model="random:tiny", data=example["data"], out=tmp_path / "run", tokenizer=cased_tokenizer)
    answer = json.loads(
        predict_text(str(tmp_path / "run"), write("a.txt", "Ada van Vaduz leaves Oslo today."), raw=True)
    )
    words = [(word["tag"], word["start"], word["end"], word["text"]) for word in answer["words"]]
    assert words[:3] == [("NAME", 0, 3, "Ada"), ("NAME", 4, 7, "van"), ("NAME", 8, 13, "Vaduz")]
    assert words[-1][1:] == (31, 32, ".")


def test_a_model_of_another_kind_of_tags_is_refused(tagger: str, write: Any) -> None:
    source = write("dev.conll", "a NN\nb VB\n")
    with pytest.raises(
        InputError, match="pos and ner, which the model was fine-tuned for, have different kinds of tags"
    ):
        evaluate_task(POS, model=tagger, data=source)
    with pytest.raises(
        InputError, match=r"a model for sst2, got one for ner, another kind .*: bertwright evaluate ner "
    ):
        evaluate_task(get_task("sst2"), model=tagger, data=source)
    with pytest.raises(InputError, match=r"dev\.conll:1: unknown entity type 'ANIMAL'; the model has LOC, PER"):
        evaluate_task(NER, model=tagger, data=write("dev.conll", "a B-ANIMAL\n"))
    skipping = with_reading(NER, input_format="auto", on_error="skip")
    metrics = evaluate_task(skipping, model=tagger, data=write("dev.conll", "a B-ANIMAL\n\nb B-LOC\n"))
    assert (metrics["sentences"], metrics["words"], metrics["left_out"]) == (1, 1, 1)
    with pytest.raises(
        InputError,
        match=r"empty: expected a dev file \(dev\.txt, valid\.conll, testa …\), found none; give the path of a file",
    ):
        evaluate_task(NER, model=tagger, data=write("empty/notes.md", "").parent)
    with pytest.raises(InputError, match=r"--raw needs plain text, one per line; JSON lines have words"):
        predict_file(tagger, str(write("a.jsonl", '{"tokens": ["a"]}')), "-", raw=True)
    with pytest.raises(InputError, match="--raw reads plain text without columns"):
        predict_file(tagger, str(source), "-", raw=True, text=("1",))
    with pytest.raises(InputError, match=r"2 text columns \(1, 2\); ner needs exactly one"):
        with_tag_columns(NER, text=("1", "2"))


def test_labels_are_taken_from_the_folder_by_name(tagger: str, tmp_path: Path, write: Any) -> None:
    folder = open_model(tagger).tokenizer
    config = json.loads((folder / "config.json").read_text())
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config["id2label"]["0"] = "OUTSIDE"
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        InputError,
        match=r"config\.json has the labels OUTSIDE, .* they must be equal",
    ):
        predict_file(str(tmp_path), str(write("a.conll", "a\n")), "-")


@pytest.mark.parametrize(
    ("labels", "name"),
    [(("O", "B-PER", "I-PER"), "ner"), (("O", "I-PER", "I-LOC"), "ner"), (("NN", "VB", "DT"), "pos")],
)
def test_taggers_of_transformers_answer(
    tmp_path: Path, cased_tokenizer: Path, write: Any, labels: Any, name: str
) -> None:
    """Imported, evaluated and used: the tags are the largest of transformers' own logits at the first pieces.

    Where these are an impossible sequence, they are those of the entities that it is read as.
    """
    transformers = pytest.importorskip("transformers", reason="the oracle; it is in the dev extra")
    words = Tokenizer.load(cased_tokenizer)
    torch.manual_seed(5)
    config = transformers.BertConfig(
        vocab_size=words.vocab_size, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        max_position_embeddings=64, id2label=dict(enumerate(labels)), initializer_range=0.5,
    )  # fmt: skip
    theirs = transformers.BertForTokenClassification(config).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    for path in cased_tokenizer.iterdir():
        (tmp_path / "theirs" / path.name).write_bytes(path.read_bytes())
    import_model(str(tmp_path / "theirs"), tmp_path / "ours")
    task = open_model(str(tmp_path / "ours")).extra["task"]
    assert (task["name"], task["labels"], task["context"]) == (name, list(labels), "off")
    tokens = sentence(4)[0]
    pieces = words.ids(tokens)
    with torch.inference_mode():
        logits = theirs(torch.tensor([[words.cls_id, *(id for ids in pieces for id in ids), words.sep_id]])).logits[0]
    first = np.cumsum([1, *map(len, pieces)])[:-1]
    expected = [labels[int(logits[piece].argmax())] for piece in first]
    assert len(set(expected)) > 1
    lines = predict_text(str(tmp_path / "ours"), write("a.conll", "".join(f"{word}\n" for word in tokens)))
    written = tuple(line.split(" ")[1] for line in lines.splitlines())
    assert written == possible(TaggingTask.model_validate(task), expected)
    scheme = "plain" if name == "pos" else "iob2"
    assert entities_of(written, scheme) == entities_of(expected, scheme)
    gold = write("dev.conll", "".join(f"{word} {labels[0]}\n" for word in tokens))
    figures = evaluate_task(get_spec(name), model=str(tmp_path / "ours"), data=gold)
    assert figures["accuracy"] == pytest.approx(expected.count(labels[0]) / len(tokens))
