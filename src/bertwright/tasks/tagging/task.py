"""words → tags or entities: the kind of task that recognising names is of, bound to its data (paper §5.3)."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from bertwright.console import say
from bertwright.errors import InputError
from bertwright.files import file_digest
from bertwright.model.config import BackboneConfig
from bertwright.model.folder import SavedModel
from bertwright.tables.files import FORMATS
from bertwright.tables.writer import Asked, opened_target
from bertwright.tasks.binding import Answered, Kind, Work
from bertwright.tasks.feature_based import FeatureData, open_with_features
from bertwright.tasks.frozen_features import Places
from bertwright.tasks.tagging.conll import Sentences, read_lines, sentences_of
from bertwright.tasks.tagging.files import (
    check_columns,
    split_sentences,
    tag_dev_file,
    tag_train_file,
    tagged_lines,
    text_answer,
)
from bertwright.tasks.tagging.model import Tagger, Windows, open_tagger, predict_tags, tag_rows, tagger_task, windows_of
from bertwright.tasks.tagging.spec import (
    Context,
    Tagged,
    TaggingTask,
    check_known,
    decode,
    for_model,
    label_ids,
    learn,
    read_tagged,
    score,
    with_tag_columns,
)
from bertwright.text.base_tokenizer import BaseTokenizer

Tag = Callable[[Sentences, Context], Tagged]
"""Sentences and how much of their neighbours is read → their tags."""


def load_data(task: TaggingTask, data: Path) -> tuple[TaggingTask, Sentences, Sentences]:
    """The task as its training data complete it, train, and dev (a tenth of train without a dev file)."""
    train = read_tagged(task, read_lines(tag_train_file(data)))
    task = learn(task, train)
    path = tag_dev_file(data)
    train, dev = (train, read_tagged(task, read_lines(path))) if path else split_sentences(train)
    check_known(task, dev)
    return task, train, dev


def prepare(task: TaggingTask, data: Path, words: BaseTokenizer, config: BackboneConfig, max_length: int) -> Work[Any]:
    """The task bound to the files of a folder, or to one file."""
    task, train, dev = load_data(task, data)
    return bound(task, train, dev, words, config, max_length, digests=_digests(train, dev))


def bound(
    task: TaggingTask,
    train: Sentences,
    dev: Sentences | None,
    words: BaseTokenizer,
    config: BackboneConfig,
    max_length: int,
    *,
    digests: Mapping[str, Any],
) -> Work[Any]:
    """The task bound to sentences, wherever they come from; None: none are kept for measuring."""
    rows = _windows(words, train, task.context, max_length)
    measured = None if dev is None else (dev, _windows(words, dev, task.context, max_length))
    labels = label_ids(task, train)

    def figures(model: nn.Module) -> dict[str, float]:
        if measured is None:
            return {}
        sentences, windows = measured
        return _figures(task, predict_tags(_tagger(model), windows, sentences.num_words), sentences)

    return Work(
        task=task,
        digests=digests,
        lengths=np.array([len(ids) for ids in rows.ids]),
        head="classifier",
        build=lambda shape: Tagger(shape, len(task.labels)),
        batch=lambda chosen: tag_rows(rows, chosen, pad_id=config.pad_id, labels=labels),
        trainable=lambda model: tagger_task(_tagger(model)),
        evaluate=figures,
        answered=lambda model: Answered(
            model,
            "BertForTokenClassification",
            task.labels,
            {"task": task.model_dump(mode="json"), "max_length": max_length},
        ),
    )


def features(
    task: TaggingTask, data: Path, words: BaseTokenizer, config: BackboneConfig, max_length: int
) -> FeatureData:
    """The task for the feature-based way: the first pieces of a sentence's words are read, and each is answered."""
    task, train, dev = load_data(task, data)
    rows, measured = (_places(part, _windows(words, part, task.context, max_length)) for part in (train, dev))
    return FeatureData(
        task=task,
        digests=_digests(train, dev),
        train=rows,
        dev={"dev": measured},
        targets=label_ids(task, train),
        outputs=len(task.labels),
        each=True,
        figures=lambda logits: _figures(task, logits["dev"], dev),
        labels=task.labels,
        extra={"task": task.model_dump(mode="json"), "max_length": max_length},
    )


def evaluate(task: TaggingTask, saved: SavedModel, words: BaseTokenizer, data: Path) -> dict[str, Any]:
    """The figures on the dev file of a folder, or on one file, overall and by type."""
    path = tag_dev_file(data) if data.is_dir() else data
    if path is None:
        raise InputError(f"{data}: holds no dev file (dev.txt, valid.conll, testa …); name a file")
    task = for_model(task, task_of_model(saved))
    sentences = read_tagged(task, read_lines(path))
    check_known(task, sentences)
    tags = open_tagging(saved, words)[1](sentences, task.context).tags
    return {**score(task, tags, sentences), "sentences": len(sentences), "words": sentences.num_words}


def predict(saved: SavedModel, words: BaseTokenizer, asked: Asked) -> dict[str, Any]:
    """Tag every word of a file: its lines as they are, with one more column or field; of plain text, find entities."""
    task = task_of_model(saved)
    asked.refuse_formats(f"words with tags ({task.name})", read=("jsonl", "lines"), write=("jsonl",))
    if asked.is_file and FORMATS.get(asked.bare.suffix) in ("csv", "parquet"):
        raise InputError(
            f"--output {asked.target}: {task.name} writes columns where columns are read, and JSON lines (.jsonl) else"
        )
    if asked.input_format == "lines":
        return predict_texts(saved, words, asked)
    task = with_tag_columns(task, text=asked.text)
    lines = read_lines(asked.source)
    if asked.input_format == "jsonl":
        lines = replace(lines, format="jsonl")
    if asked.output_format == "jsonl" != lines.format:
        raise InputError(
            f"--output-format jsonl: {lines.source} is read as columns of words, which are kept; --raw is for texts"
        )
    _refuse_ending(asked, objects=lines.format == "jsonl")
    check_columns(task, lines)
    sentences = sentences_of(lines, task.columns, with_tags=False)
    tagged = open_tagging(saved, words)[1](sentences, task.context)
    _write(asked, tagged_lines(task, lines, tagged))
    return {"sentences": len(sentences), "words": sentences.num_words}


def _refuse_ending(asked: Asked, *, objects: bool) -> None:
    """InputError for a file whose ending says JSON lines where columns are written, or columns where `objects` are."""
    ending = asked.bare.suffix
    if not asked.is_file or asked.output_format != "auto":
        return
    if not objects and FORMATS.get(ending) == "jsonl":
        raise InputError(
            f"--output {asked.target}: {asked.source} is read as columns of words, which are kept; --raw is for texts"
        )
    if objects and (ending == ".tsv" or ending.startswith(".conll")):
        raise InputError(f"--output {asked.target}: JSON lines are written here; name a file .jsonl")


def predict_texts(saved: SavedModel, words: BaseTokenizer, asked: Asked) -> dict[str, Any]:
    """Find the entities of every line of a plain text, empty ones included: one JSON object for each."""
    lines = read_lines(asked.source)
    if lines.format == "jsonl" and asked.source != "-":
        raise InputError(
            f"{asked.source}: --raw is for plain text, one a line; JSON lines hold words, in a field `tokens`"
        )
    _refuse_ending(asked, objects=True)
    texts = [line.rstrip("\r\n") for line in lines.lines]
    task, tagged = open_tagging(saved, words)
    found, num_words = tag_texts(task, tagged, words, texts, source=lines.source)
    _write(asked, (json.dumps(answer, ensure_ascii=False) + "\n" for answer in found))
    return {"texts": len(texts), "words": num_words}


def tag_texts(
    task: TaggingTask, tagged: Tag, words: BaseTokenizer, texts: Sequence[str], *, source: str
) -> tuple[list[dict[str, Any]], int]:
    """`text_answer` of each text, which stands alone, and how many words they have."""
    places = words.words(texts)
    sentences = Sentences(
        source=source,
        words=tuple(tuple(text[begin:end] for begin, end in spans) for text, spans in zip(texts, places, strict=True)),
        tags=None,
        lines=tuple((number,) * max(1, len(spans)) for number, spans in enumerate(places, 1)),
    )
    found = tagged(sentences, "off")
    cuts = np.cumsum([len(spans) for spans in places])[:-1]
    rows = zip(texts, places, found.tags, np.split(found.probabilities, cuts), strict=True)
    return [text_answer(task, *row) for row in rows], sentences.num_words


def task_of_model(saved: SavedModel) -> TaggingTask:
    """The task that a model folder notes, its labels in the order of the outputs."""
    task = TaggingTask.model_validate(saved.extra["task"])
    if sorted(task.labels) != sorted(saved.labels):
        raise InputError(
            f"{saved.place}: config.json names the labels {', '.join(saved.labels)} in id2label "
            f"and {', '.join(task.labels)} in its note of the task; they must be the same"
        )
    return task.model_copy(update={"labels": saved.labels})


def open_tagging(saved: SavedModel, words: BaseTokenizer) -> tuple[TaggingTask, Tag]:
    """The task of a fine-tuned model folder, and what tags sentences as it says, given their context."""
    task, max_length = task_of_model(saved), saved.max_length
    if "features" in saved.extra:
        answered = open_with_features(saved)

        def logits(sentences: Sentences, windows: Windows) -> NDArray[np.float32]:
            return answered(_places(sentences, windows))
    else:
        model = open_tagger(saved, len(task.labels))

        def logits(sentences: Sentences, windows: Windows) -> NDArray[np.float32]:
            return predict_tags(model, windows, sentences.num_words)

    def tagged(sentences: Sentences, context: Context) -> Tagged:
        return decode(task, logits(sentences, _windows(words, sentences, context, max_length)), sentences)

    return task, tagged


def _windows(words: BaseTokenizer, sentences: Sentences, context: Context, max_length: int) -> Windows:
    """The rows of a file; what becomes of words that the tokenizer drops, and of missing documents, is said."""
    if context == "documents" and sentences.documents is None and len(sentences) > 1:
        say(f"{sentences.source}: marks no documents; each sentence stands alone")
    windows = windows_of(words, sentences, context=context, max_length=max_length)
    if windows.vanished:
        ends = np.cumsum([len(row) for row in sentences.words])
        row = int(np.searchsorted(ends, windows.vanished[0], side="right"))
        word = windows.vanished[0] - int(ends[row]) + len(sentences.words[row])
        say(
            f"{sentences.source}: words of which the tokenizer leaves nothing, for which [UNK] stands: "
            f"{len(windows.vanished)}, the first {sentences.place(row, word)} ({sentences.words[row][word]!a})"
        )
    return windows


def _places(sentences: Sentences, windows: Windows) -> Places:
    """The first piece of every word, sentence by sentence."""
    asks = list(zip(windows.ids, windows.at, windows.words, strict=True))
    return Places(asks, np.cumsum([0, *map(len, sentences.words)]))


def _digests(train: Sentences, dev: Sentences) -> dict[str, Any]:
    """Of the files; a part of the training file has none of its own."""
    measured = [] if dev.source == train.source else [Path(dev.source)]
    return {"train": file_digest(Path(train.source)), "dev": {path.name: file_digest(path) for path in measured}}


def _figures(task: TaggingTask, logits: NDArray[np.float32], dev: Sentences) -> dict[str, float]:
    """What is measured after an epoch: the overall figures."""
    tags = decode(task, logits, dev).tags
    figures = {name: value for name, value in score(task, tags, dev).items() if "." not in name}
    return {**figures, "collapsed": float(_fell(tags, dev))}


def _fell(tags: Iterable[Iterable[str]], dev: Sentences) -> bool:
    """Whether every word got the same tag though they have different ones."""
    assert dev.tags is not None
    ours, theirs = (np.array([tag for row in rows for tag in row]) for rows in (tags, dev.tags))
    return len(set(ours)) == 1 and bool((theirs != ours[0]).any())


def _write(asked: Asked, lines: Iterable[str]) -> None:
    with opened_target(asked) as stream:
        for line in lines:
            stream.write(line.encode())


def _tagger(model: Any) -> Tagger:
    assert isinstance(model, Tagger)
    return model


TAGGING = Kind(TaggingTask, prepare, evaluate, predict, features)
