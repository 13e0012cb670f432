"""Tagging end to end: labels, decoding, metrics, loss and logits, learning, and every error."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from bertwright.commands import finetuning as commands
from bertwright.errors import InputError, RunFailed
from bertwright.finetuning.evaluate import evaluate_task, predict_file
from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.model.bert import Bert, open_architecture
from bertwright.model.config import EncoderConfig
from bertwright.model.folder import open_model
from bertwright.tasks.classification.spec import get_task
from bertwright.tasks.spec import get_spec, with_reading, with_settings
from bertwright.tasks.tagging.model import Tagger, predict_tags, tag_rows, windows_of
from bertwright.tasks.tagging.spec import (
    NER,
    POS,
    decode_tags,
    for_model,
    label_ids,
    learn_tags,
    read_tagged,
    score_tags,
)
from bertwright.tasks.tagging.task import TAGGING
from tests.support.eight_sentences import PEOPLE, AlphabetLetters, made_of, sentence, tagging_example

SHORT = FinetuneSettings(epochs=30, batch_size=4, learning_rate=1e-3, max_length=40, threads=1)


def test_labels_are_whole_types_whatever_the_scheme(write):
    for name, tags, labels in (
        ("a", "O I-PER I-LOC", ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")),
        ("b", "O B-PER", ("O", "B-PER", "I-PER")),
        ("c", "S-PER O", ("O", "B-PER", "I-PER", "E-PER", "S-PER")),
    ):
        path = write(f"{name}.conll", "".join(f"w {tag}\n" for tag in tags.split()))
        task = learn_tags(NER, read_tagged(NER, path))
        assert task.labels == labels
        assert task.context == "off"
    tags = read_tagged(NER, write("a.conll", "v I-PER\nw I-PER\nx B-PER\n")).tags
    assert tags == (("B-PER", "I-PER", "B-PER"),)
    plain = learn_tags(POS, read_tagged(POS, write("d.conll", "v VERB\nw I-PER\n")))
    assert plain.labels == ("I-PER", "VERB")


def test_files_of_other_schemes_are_brought_to_the_models(write, tmp_path):
    write("data/train.conll", "Ada I-PER\nBo B-PER\n\nx O\n")
    write("data/dev.conll", "Ada B-PER\nLi E-PER\nx S-PER\n")
    read = TAGGING.read(NER, tmp_path / "data")
    task, train, dev = read.task, read.train, read.validation["dev"]
    assert train.tags == (("B-PER", "B-PER"), ("O",))
    assert dev.tags == (("B-PER", "I-PER", "B-PER"),)
    assert label_ids(task, dev).tolist() == [1, 2, 1]


@pytest.mark.parametrize(
    ("tags", "learned"),
    [
        ("B-PER M-PER E-PER S-LOC O", "B-PER I-PER E-PER S-LOC O"),
        ("B-PER I-PER L-PER U-LOC O", "B-PER I-PER E-PER S-LOC O"),
        ("B-PER M-PER E-PER W-LOC O", "B-PER I-PER E-PER S-LOC O"),
        ("I-PER I-PER I-LOC O I-LOC", "B-PER I-PER B-LOC O B-LOC"),
        ("b-PER i-PER b-LOC o o", "B-PER I-PER B-LOC O O"),
        ("PER-B PER-I LOC-B O O", "B-PER I-PER B-LOC O O"),
        ("B_PER I_PER B_LOC O O", "B-PER I-PER B-LOC O O"),
        ("B I B O O", "B-ENTITY I-ENTITY B-ENTITY O O"),
        ("B M E S S", "B-ENTITY I-ENTITY E-ENTITY S-ENTITY S-ENTITY"),
        ("PER-B PER-L creative-work-U O o", "B-PER E-PER S-creative-work O O"),
    ],
)
def test_schemes_of_other_tools_are_read(write, tags, learned):
    path = write("a.conll", "".join(f"w {tag}\n" for tag in tags.split()))
    assert read_tagged(NER, path).tags == (tuple(learned.split()),)
    assert read_tagged(POS, path).tags == (tuple(tags.split()),)


def test_a_mistake_in_another_spelling_is_named_as_the_file_has_it(write, capsys):
    read_tagged(NER, write("c.conll", "a B-X\nb L-X\n"))
    assert "c.conll: tags are IOBES, as 'E-X' (the file has 'L-X') on line 2 shows" in capsys.readouterr().err
    path = write("a.conll", "a U-X\nb L-X\n")
    with pytest.raises(
        InputError, match=r"a\.conll:2: 'E-X' after 'S-X' is impossible in IOBES \(the file has 'L-X'\)"
    ):
        read_tagged(NER, path)
    for tags in ("B-X X-Y", "B-X M-X L-X", "B-X X-I", "NN VB"):
        with pytest.raises(InputError, match="is not a tag of IOB2"):
            read_tagged(NER, write("b.conll", "".join(f"w {tag}\n" for tag in tags.split())))


def test_context_is_on_where_training_files_mark_documents(write):
    marked = read_tagged(NER, write("a.conll", "-DOCSTART- O\n\na B-X\n"))
    plain = read_tagged(NER, write("b.conll", "a B-X\n"))
    assert learn_tags(NER, marked).context == "documents"
    assert learn_tags(NER, plain).context == "off"
    assert learn_tags(with_settings(NER, ["context=off"]), marked).context == "off"
    assert learn_tags(with_settings(NER, ["context=file"]), plain).context == "file"
    trained = learn_tags(NER, marked)
    assert for_model(NER, trained) == trained
    assert for_model(with_settings(NER, ["context=off"]), trained).context == "off"


@pytest.mark.parametrize(
    ("task", "setting", "message"),
    [
        (NER, "context=on", "--task-setting context=on: Input should be 'auto', 'documents', 'file' or 'off'"),
        (NER, "scheme=bio", "Input should be 'auto', 'iob1', 'iob2', 'iobes' or 'plain'"),
        (NER, "words=2", r"ner has no setting 'words'; allowed: scheme=…, context=…"),
        (
            NER,
            "scheme=plain",
            "--task-setting scheme=plain: ner needs an entity scheme, pos has none; choose the other task",
        ),
        (
            POS,
            "scheme=iob2",
            "--task-setting scheme=iob2: ner needs an entity scheme, pos has none; choose the other task",
        ),
        (
            POS,
            "scheme=auto",
            "--task-setting scheme=auto: ner needs an entity scheme, pos has none; choose the other task",
        ),
        (get_task("sst2"), "context=off", "sst2 has no setting 'context'; allowed: none"),
    ],
)
def test_settings_that_are_not_there_are_refused(task, setting, message):
    with pytest.raises(InputError, match=message):
        with_settings(task, [setting])


def test_a_setting_is_given_once():
    with pytest.raises(InputError, match="--task-setting scheme=iob2: scheme is set twice"):
        with_settings(NER, ["scheme=iob1", "context=off", "scheme=iob2"])
    assert with_settings(POS, ["scheme=plain"]) == POS


@pytest.mark.parametrize(
    ("task", "content", "message"),
    [
        (
            NER,
            "a B-X\nb O\nc I-X\n",
            r"a\.conll:3: 'I-X' after 'O' is impossible in IOB2, the scheme that 'B-X' on line 1",
        ),
        (
            NER,
            "a I-X\nb O\nc B-X\n",
            r"a\.conll:3: 'B-X' after 'O' is impossible in IOB1, the scheme that 'I-X' on line 1",
        ),
        (
            NER,
            "a O\n\nb B-X\nc O\n\nd S-X\n",
            r"a\.conll:4: 'O' after 'B-X' is impossible in IOBES, .* 'S-X' on line 6",
        ),
        (
            NER,
            "a NN\n",
            r"a\.conll:1: 'NN' is not a tag of IOB2 \(O, B-TYPE, I-TYPE\); .* BILOU; .* --label-column; .* task pos",
        ),
        (with_settings(NER, ["scheme=iob2"]), "a I-X\n", r"a\.conll:1: 'I-X' at the beginning of a sentence"),
    ],
)
def test_impossible_tags_are_named_with_their_line(write, task, content, message):
    with pytest.raises(InputError, match=message):
        read_tagged(task, write("a.conll", content))


def test_iob1_as_a_setting_allows_i_after_o(write):
    path = write("a.conll", "a O\nb I-X\n")
    assert read_tagged(with_settings(NER, ["scheme=iob1"]), path).tags == (("O", "B-X"),)


@pytest.mark.parametrize(
    ("task", "content", "message"),
    [
        (NER, "a O\n", r"a\.conll: expected at least two labels, found no entity"),
        (POS, "a NN\n", r"a\.conll: expected at least two labels, found only the tag 'NN'"),
        (
            POS,
            "".join(f"w{n} t{n}\n" for n in range(20)),
            r"a\.conll: expected tags, got 20 different values for 20 words, such as 't0'; set",
        ),
    ],
)
def test_training_files_that_teach_nothing_are_refused(write, task, content, message):
    with pytest.raises(InputError, match=message):
        learn_tags(task, read_tagged(task, write("a.conll", content)))


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (NER, r"dev\.conll:3: unknown entity type 'Y'; the model has X"),
        (POS, r"dev\.conll:3: unknown tag 'I-Y'; the model has B-X, O"),
    ],
)
def test_what_the_model_does_not_know_is_named_with_its_line(write, tmp_path, task, message):
    """In the dev file's own words: it is IOB1, and the model learned from IOB2."""
    write("data/train.conll", "a B-X\nb O\n")
    write("data/dev.conll", "a O\n\nb I-Y\n")
    with pytest.raises(InputError, match=message):
        TAGGING.read(task, tmp_path / "data")


def test_tags_and_probabilities_come_from_a_softmax():
    task = NER.model_copy(update={"labels": ("O", "B-X", "I-X")})
    logits = np.array([[0.0, 3.0, 1.0], [0.0, 0.0, 5.0], [2.0, 1.0, 0.0]])
    sentences = made_of([["a", "b"], [], ["c"]])
    location = sentences.location(2, 0)
    tags = decode_tags(task, logits, sentences)
    assert tags.tags == (("B-X", "I-X"), (), ("O",))
    expected = [np.exp(row.max()) / np.exp(row).sum() for row in logits]
    assert tags.probabilities == pytest.approx(expected, abs=1e-12)
    with pytest.raises(RunFailed, match=f"{location}: expected finite numbers from the model"):
        decode_tags(task, np.array([[0.0, 1.0, 0.0], [0.0, 1.0, 0.0], [0.0, np.nan, 0.0]]), sentences)


def test_metrics_of_entities_and_of_plain_tags():
    task = NER.model_copy(update={"labels": ("O", "B-X", "I-X", "B-Y", "I-Y")})
    gold = made_of([["a", "b", "c"], ["d"]], tags=[["B-X", "I-X", "O"], ["B-Y"]])
    figures = score_tags(task, [["B-X", "O", "B-Y"], ["B-Y"]], gold)
    assert list(figures)[:4] == ["f1", "precision", "recall", "accuracy"]
    assert figures == pytest.approx(
        {
            **{"f1": 2 / 5, "precision": 1 / 3, "recall": 1 / 2, "accuracy": 2 / 4},
            **{"X.f1": 0, "X.precision": 0, "X.recall": 0},
            **{"Y.f1": 2 / 3, "Y.precision": 1 / 2, "Y.recall": 1},
        }
    )
    task = POS.model_copy(update={"labels": ("NN", "VB")})
    gold = made_of([["a", "b", "c"]], tags=[["NN", "NN", "VB"]])
    figures = score_tags(task, [["NN", "VB", "VB"]], gold)
    assert figures == pytest.approx(
        {
            **{"accuracy": 2 / 3, "NN.f1": 2 / 3, "NN.precision": 1, "NN.recall": 1 / 2},
            **{"VB.f1": 2 / 3, "VB.precision": 1 / 2, "VB.recall": 1},
        }
    )


def small_tagger(labels: int) -> tuple[EncoderConfig, Tagger]:
    config = EncoderConfig(vocab_size=128, hidden=32, layers=2, heads=4, intermediate=48, max_positions=64)
    torch.manual_seed(3)
    model = Tagger(config, labels).double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return config, model.eval()


SOME = made_of([["ab", "c"], ["ddddd"], ["e", "fg", "a", "bcd"], ["g"]], [0, 0, 0, 1])


def test_logits_are_the_plain_paths_whatever_stands_in_one_batch():
    """Against transformers' layout computed everywhere, in float64: 1e-9; all rows at once against each alone."""
    config, model = small_tagger(5)
    plain = Bert(config, "BertForTokenClassification", num_labels=5).double().eval()
    plain.load_state_dict(model.state_dict())
    windows = windows_of(AlphabetLetters(), SOME, context="documents", max_length=9)
    assert len(windows) == 4
    together = model(tag_rows(windows, range(4), pad_id=0)).detach()
    for row in range(4):
        ids = torch.from_numpy(windows.ids[row])[None]
        logits = plain(ids, torch.zeros_like(ids), torch.ones_like(ids) > 0)["logits"][0, windows.at[row]].detach()
        torch.testing.assert_close(together[row, : len(logits)], logits, atol=1e-9, rtol=0)
    by_word = predict_tags(model, windows, SOME.num_words)
    for row in range(4):
        np.testing.assert_allclose(by_word[windows.words[row]], together[row, : len(windows.at[row])], atol=1e-6)


def test_the_loss_is_a_sum_over_words():
    _, model = small_tagger(3)
    windows = windows_of(AlphabetLetters(), SOME, context="documents", max_length=9)
    labels = np.array([0, 1, 2, 1, 0, 2, 1, 1])
    trainable = TAGGING.trainable(NER, model)
    rows = tag_rows(windows, [2, 0, 3], pad_id=0, labels=labels)
    ((loss, name),) = trainable.step(rows).values()
    logits = torch.from_numpy(predict_tags(model.float(), windows, SOME.num_words))
    words = np.concatenate([windows.words[row] for row in (2, 0, 3)])
    expected = F.cross_entropy(logits[words], torch.from_numpy(labels[words]), reduction="sum")
    assert float(loss.detach()) == pytest.approx(float(expected), abs=1e-4)
    assert trainable.counts(rows) == {name: len(words)}
    assert trainable.flops(rows) > 0


@pytest.mark.parametrize("name", ["ner", "pos"])
@pytest.mark.parametrize("features", [None, "concat-last-four"])
def test_it_overfits_eight_sentences_and_comes_back(
    tmp_path: Path, cased_tokenizer: Path, name: str, features: Any
) -> None:
    """F1 (or accuracy) 1.0 from the run, from its folder, and in the answers; with features of a frozen encoder too."""
    task = get_spec(name)
    example = tagging_example(task, tmp_path)
    settings = SHORT.model_copy(
        update={"features": features, "learning_rate": 1e-2, "lstm_width": 96} if features else {}
    )
    result = finetune(
        settings, task, model="random:tiny", data=example["data"], out=tmp_path / "run", tokenizer=cased_tokenizer
    )
    assert (result["metric"], result["mean"]) == ("f1" if name == "ner" else "accuracy", 1.0)
    figures = evaluate_task(task, model=str(tmp_path / "run"), data=example["data"])
    assert (figures["sentences"], figures["words"]) == (8, 56)
    assert figures[result["metric"]] == 1.0
    answered = predict_file(str(tmp_path / "run"), str(example["input_file"]), str(tmp_path / example["output"]))
    assert (answered["sentences"], answered["words"]) == (8, 56)
    assert example["answers"](tmp_path / example["output"]) == example["right"]
    with pytest.raises(InputError, match=example["trouble"]):
        finetune(
            settings, task, model="random:tiny", data=example["broken"], out=tmp_path / "no", tokenizer=cased_tokenizer
        )
    if not features:
        saved = open_model(str(tmp_path / "run"))
        assert saved.architecture == open_architecture(saved).architecture == "BertForTokenClassification"
        assert set(saved.labels) == (
            {"O", "B-LOC", "I-LOC", "B-PER", "I-PER"} if name == "ner" else {"NAME", "PLACE", "OTHER"}
        )


def test_a_tenth_is_kept_where_there_is_no_dev_file(write: Any) -> None:
    rows = "".join(f"{PEOPLE[n % 8]}{n} B-PER\nx O\n\n" for n in range(40))
    read = TAGGING.read(NER, write("data/all.conll", rows).parent)
    task, train, dev = read.task, read.train, read.validation["dev"]
    assert (len(train), len(dev), task.labels) == (36, 4, ("O", "B-PER", "I-PER"))


def test_the_commands_take_columns_and_settings(tmp_path: Path, cased_tokenizer: Path) -> None:
    """Options of the command line reach the task and its run; another setting is another run."""
    data = tmp_path / "data"
    data.mkdir()
    for name in ("train", "dev"):
        rows = ("".join(f"7 {word} {tag} x\n" for word, tag in zip(*sentence(row), strict=True)) for row in range(8))
        (data / f"{name}.conll").write_text("-DOCSTART-\n\n" + "\n".join(rows))
    arguments: Any = {"model": "random:tiny", "data": data, "out": tmp_path / "run", "tokenizer": cased_tokenizer}
    arguments |= {"text_column": ("2",), "label_column": "3", "settings": {"epochs": 1, "batch_size": 32, "threads": 1}}
    commands.finetune_command("ner", task_setting=("context=off", "scheme=iob2"), **arguments)
    task = open_model(str(tmp_path / "run")).extra["task"]
    assert {"context": "off", "scheme": "iob2", "word": "2", "tag": "3"}.items() <= task.items()
    figures = commands.evaluate_command("ner", model=str(tmp_path / "run"), data=data)
    assert (figures["sentences"], figures["words"]) == (8, 56)
    with pytest.raises(
        InputError,
        match=r"dev\.conll:3: 'x' is not a tag of IOB2 \(O, B-TYPE, I-TYPE\)",
    ):
        commands.evaluate_command("ner", model=str(tmp_path / "run"), data=data, label_column="4")
    with pytest.raises(InputError, match="data"):
        commands.finetune_command("ner", resume=True, **arguments)


def skipping(task):
    return with_reading(task, input_format="auto", on_error="skip")


DIRTY = b"""\
# a comment
Ada B-PER
swam O

Bo B-PER extra
ran O

In O
Oslo

Rome B-LOC
\xff O

Li I-PER

x FOO

Ulm B-LOC
"""


def test_bad_sentences_of_columns_are_left_out_and_counted(write, capsys):
    path = write("a.conll", DIRTY)
    sentences = read_tagged(skipping(NER), path)
    assert sentences.words == (("Ada", "swam"), ("Ulm",))
    assert sentences.lines == ((2, 3), (18,))
    assert sentences.left_out == {
        "with another number of columns": 2,
        "with a tag that the scheme forbids": 2,
        "not UTF-8 text": 1,
    }
    messages = capsys.readouterr().err
    assert f"{path}: 5 sentences are left out: 2 with another number of columns, 2 with a tag that the" in messages
    assert f"left out: {path}:5: expected 2 columns, as on line 2, got 3" in messages
    assert "left out: " + f"{path}:14: 'I-PER' at the beginning of a sentence is impossible in IOB2" in messages
    with pytest.raises(InputError, match=r"a\.conll:12: not UTF-8 text"):
        read_tagged(NER, path)


def test_a_sentence_with_several_mistakes_counts_once(write):
    sentences = read_tagged(skipping(POS), write("a.tsv", "a\tN\n\tV\nb\t\n\nc\tN\n"))
    assert (sentences.words, sentences.left_out) == ((("c",),), {"without a word": 1})


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"tokens": ["a"]}', "without a list of tags"),
        ('{"tokens": "a", "tags": ["O"]}', "without a list of words"),
        ('{"tokens": ["a", 1], "tags": ["O", "O"]}', "without a list of words"),
        ('{"tokens": ["a"], "tags": ["O", "O"]}', "with another number of tags than words"),
        ('{"tokens": [], "tags": []}', "without words"),
        ('{"tokens": ["a"', "not valid JSON"),
        ("", "not valid JSON"),
    ],
)
def test_bad_sentences_of_json_lines_are_left_out(write, line, reason):
    good = ['{"tokens": ["Ada"], "tags": ["B-PER"], "document": 1}', '{"tokens": ["x"], "tags": ["O"], "document": 2}']
    path = write("a.jsonl", "\n".join([good[0], line, good[1]]) + "\n")
    sentences = read_tagged(skipping(NER), path)
    assert (sentences.words, sentences.lines, sentences.documents) == ((("Ada",), ("x",)), ((1,), (3,)), (0, 1))
    assert sentences.left_out == {reason: 1}
    with pytest.raises(InputError, match=r"a\.jsonl:2: "):
        read_tagged(NER, path)


@pytest.mark.parametrize(
    ("common", "mistake", "learned"),
    [
        ("B-PER I-PER O", "O E-PER", "B-PER I-PER O"),  # one E does not make the file IOBES
        ("B-PER M-PER E-PER S-LOC", "FOO", "B-PER I-PER E-PER S-LOC"),
        ("I-PER I-PER O", "B-LOC O", "B-PER I-PER O"),  # IOB1, although the first entity begins with B
        ("PER-B PER-I O", "X-Y-Z", "B-PER I-PER O"),
    ],
)
def test_the_scheme_is_the_one_that_most_sentences_follow(write, common, mistake, learned, capsys):
    def rows(tags):
        return "".join(f"w {tag}\n" for tag in tags.split()) + "\n"

    sentences = read_tagged(skipping(NER), write("a.conll", rows(mistake) + 3 * rows(common)))
    assert sentences.tags == 3 * (tuple(learned.split()),)
    assert sentences.left_out == {"with a tag that the scheme forbids": 1}
    assert capsys.readouterr().err.count(", which most sentences follow\n") == 1


def test_of_dev_sentences_with_types_that_train_lacks_are_left_out(write, tmp_path, capsys):
    write("data/train.conll", "Ada B-PER\nBo O\n\nx O\n")
    write("data/dev.conll", "Ada B-PER\n\nOslo B-LOC\n")
    read = TAGGING.read(skipping(NER), tmp_path / "data")
    assert read.validation["dev"].words == (("Ada",),)
    assert read.validation["dev"].left_out == {"with an unknown type": 1}
    assert "dev.conll:3: unknown entity type 'LOC'; the model has PER" in capsys.readouterr().err
    with pytest.raises(InputError, match=r"dev\.conll:3: unknown entity type 'LOC'"):
        TAGGING.read(NER, tmp_path / "data")


def test_a_file_of_bad_sentences_alone_is_refused_with_the_first(write):
    with pytest.raises(
        InputError, match=r"1 sentence is left out: 1 with a tag that .*; the first: .*a\.conll:1: 'FOO'"
    ):
        read_tagged(skipping(NER), write("a.conll", "x FOO\n"))
