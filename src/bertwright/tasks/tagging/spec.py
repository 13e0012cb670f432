"""… → task → prediction: words in; a tag for each, or the entities they make, out (paper §5.3).

The functions below are the only reading, decoding and scoring of such tasks: training, evaluation and prediction all
use them. Files may be in any scheme; entities are learned as IOB2 (IOBES where the training file is), and every file's
tags are brought to that.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from bertwright.console import say
from bertwright.errors import InputError, RunFailed
from bertwright.tasks.spec import TaskSpec, shown
from bertwright.tasks.tagging.conll import Columns, Lines, Sentences, sentences_of
from bertwright.tasks.tagging.entities import (
    OUTSIDE,
    PREFIXES,
    Scheme,
    count_entities,
    detect,
    entities_of,
    first_impossible,
    in_scheme,
    parts,
    scheme_of_labels,
    tags_of,
)

FEW_WORDS: Final = 20  # from so many on, tags that hardly repeat are taken for a wrong column
Context = Literal["auto", "documents", "file", "off"]


class TaggingTask(TaskSpec):
    """A task with one tag per word; with its labels it goes into the model folder."""

    settable: ClassVar[tuple[str, ...]] = ("scheme", "context")

    scheme: Literal["auto", "iob1", "iob2", "iobes", "plain"] = "auto"  # of the files; auto: each file shows its own
    context: Context = "auto"  # what stands around a sentence; `learn` makes documents or off of auto
    word: str | None = None  # the column's number, or the field of JSON lines
    tag: str | None = None
    labels: tuple[str, ...] = ()  # in the order of the logits; none: `learn` finds them in the training data

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if len(set(self.labels)) != len(self.labels):
            raise ValueError("labels must be distinct")
        if self.labels and self.scheme != "plain" and scheme_of_labels(self.labels) == "plain":
            raise ValueError(f"labels {', '.join(self.labels)} do not fit the scheme {self.scheme}")
        return self

    def refuse_change(self, changed: Self) -> None:
        """ValueError where entities become names by themselves, or the other way round."""
        if (changed.scheme == "plain") != (self.scheme == "plain"):
            raise ValueError("entities have a scheme and other tags have none: the tasks ner and pos")

    @property
    def columns(self) -> Columns:
        """Where the files have words and tags."""
        return Columns(self.word, self.tag)

    @property
    def learned_scheme(self) -> Scheme:
        """The scheme that the labels are tags of."""
        return "plain" if self.scheme == "plain" else scheme_of_labels(self.labels)


@dataclass(frozen=True)
class Tagged:
    """W words' answers: `tags` for each of N sentences, `probabilities` [W] of these tags."""

    tags: tuple[tuple[str, ...], ...]
    probabilities: NDArray[np.float64]


def with_tag_columns(task: TaggingTask, *, text: Sequence[str] = (), label: str | None = None) -> TaggingTask:
    """The task on files whose words and tags stand in other columns or fields."""
    if len(text) > 1:
        raise InputError(f"{len(text)} text columns ({', '.join(text)}); {task.name} reads the words of one")
    return task.model_copy(update={"word": text[0] if text else task.word, "tag": label or task.tag})


def for_model(asked: TaggingTask, trained: TaggingTask) -> TaggingTask:
    """The task that a model is measured on: with its labels, and its settings where no others are asked for."""
    if (asked.scheme == "plain") != (trained.scheme == "plain"):
        raise InputError(
            f"{asked.name} and {trained.name}, for which the model was fine-tuned, have tags of other kinds"
        )
    given = {
        "scheme": trained.scheme if asked.scheme == "auto" else asked.scheme,
        "context": trained.context if asked.context == "auto" else asked.context,
        "word": asked.word or trained.word,
        "tag": asked.tag or trained.tag,
    }
    return trained.model_copy(update=given)


def read_tagged(task: TaggingTask, lines: Lines) -> Sentences:
    """The sentences of a file, as `as_learned` has them."""
    return as_learned(task, sentences_of(lines, task.columns, with_tags=True))


def as_learned(task: TaggingTask, found: Sentences) -> Sentences:
    """Sentences with their tags in the scheme that is learned; the scheme found is said.

    Raises InputError, with file and line, for what is no tag of the scheme or an impossible sequence of tags.
    """
    assert found.tags is not None
    scheme, shown = _scheme(task, found)
    for row, tags in enumerate(found.tags):
        trouble = first_impossible(tags, scheme)
        if trouble:
            hint = "" if "impossible" in trouble[1] else "; for tags of other kinds there is the task pos"
            raise InputError(f"{found.place(row, trouble[0])}: {trouble[1]}{shown}{hint}")
    wanted = task.learned_scheme if task.labels else learned_as(scheme)
    return replace(found, tags=tuple(in_scheme(tags, scheme, wanted) for tags in found.tags))


def learned_as(scheme: Scheme) -> Scheme:
    """The scheme in which the entities of a training file are learned."""
    return "iob2" if scheme == "iob1" else scheme


def learn(task: TaggingTask, sentences: Sentences) -> TaggingTask:
    """What the training data decide: the labels, and whether there are documents whose sentences help one another.

    A type brings all tags of its scheme along, so that an entity of several words is known from single ones. A task
    that knows its labels keeps them.
    """
    assert sentences.tags is not None
    if task.context == "auto":
        task = task.model_copy(update={"context": "documents" if sentences.documents else "off"})
    if task.labels:
        return task
    seen = sorted({tag for tags in sentences.tags for tag in tags})
    labels = seen if task.scheme == "plain" else _entity_labels(seen)
    if len(labels) < 2:
        what = f"the tag '{labels[0]}' alone" if task.scheme == "plain" else "no entity"
        raise InputError(f"{sentences.source}: holds {what}; there is nothing to learn")
    if sentences.num_words >= FEW_WORDS and 2 * len(seen) > sentences.num_words:
        raise InputError(
            f"{sentences.source}: {len(seen)} different tags for {sentences.num_words} words, '{seen[0]}' among them: "
            "no tags; --label-column takes the number of their column"
        )
    return task.model_copy(update={"labels": tuple(labels)})


def label_ids(task: TaggingTask, sentences: Sentences) -> NDArray[np.int64]:
    """The label of every word [W]; InputError, with file and line, for one that is not among the labels."""
    ids = {label: number for number, label in enumerate(task.labels)}
    found = np.empty(sentences.num_words, dtype=np.int64)
    for place, (row, word, tag) in enumerate(_tags(sentences)):
        if tag not in ids:
            raise _unknown(task, sentences.place(row, word), tag)
        found[place] = ids[tag]
    return found


def check_known(task: TaggingTask, sentences: Sentences) -> None:
    """InputError, with file and line, for the first type (or plain tag) that the labels do not have."""
    scheme = task.learned_scheme
    known = set(task.labels) if scheme == "plain" else {parts(label)[1] for label in task.labels}
    for row, word, tag in _tags(sentences):
        if (tag if scheme == "plain" else parts(tag)[1]) not in known:
            raise _unknown(task, sentences.place(row, word), tag)


def decode(task: TaggingTask, logits: NDArray[Any], sentences: Sentences) -> Tagged:
    """The likeliest tag of each word, from logits [W, L] in the order of the words; RunFailed if they are not finite.

    Each word is decided alone, as in the paper: an impossible sequence may come out, which `entities_of` can read.
    """
    logits = np.asarray(logits, dtype=np.float64)
    if not np.all(np.isfinite(logits)):
        raise RunFailed(f"{task.name}: the model's output holds numbers that are not finite")
    best = logits.argmax(axis=1)
    exponents = np.exp(logits - logits.max(axis=1, keepdims=True))
    names = iter([task.labels[value] for value in best])
    return Tagged(
        tags=tuple(tuple(next(names) for _ in words) for words in sentences.words),
        probabilities=1.0 / exponents.sum(axis=1),
    )


def possible(task: TaggingTask, tags: Sequence[str]) -> tuple[str, ...]:
    """The entities that predicted tags are read as, in tags that the scheme allows; they are what `score` counts."""
    scheme = task.learned_scheme
    return tags_of(entities_of(tags, scheme), len(tags), scheme)


def score(task: TaggingTask, tags: Sequence[Sequence[str]], sentences: Sentences) -> dict[str, float]:
    """The figures of predicted tags, the one that decides which epoch is best first.

    f1, precision, recall    of entities, as conlleval; for plain tags all three are the accuracy and left out
    accuracy                 the share of words whose tag is right
    TYPE.f1, …               the same for each type (each tag where tags are plain)
    """
    assert sentences.tags is not None
    scheme = task.learned_scheme
    found = [entities_of(row, scheme) for row in tags]
    there = [entities_of(row, scheme) for row in sentences.tags]
    right = sum(
        a == b for ours, theirs in zip(tags, sentences.tags, strict=True) for a, b in zip(ours, theirs, strict=True)
    )
    overall, by_type = count_entities(found, there)
    accuracy = {"accuracy": right / sentences.num_words}
    figures = accuracy if scheme == "plain" else overall.figures | accuracy
    for kind, counts in by_type.items():
        figures |= {f"{kind}.{name}": value for name, value in counts.figures.items()}
    return figures


def _scheme(task: TaggingTask, found: Sentences) -> tuple[Scheme, str]:
    """The scheme of a file, and what to add to an error about it."""
    if task.scheme != "auto":
        return task.scheme, ""
    assert found.tags is not None
    scheme, where = detect(found.tags)
    if not where:
        return scheme, ""
    row, word = where
    shown = f"'{found.tags[row][word]}' {found.where(row, word)} shows"
    say(f"{found.source}: tags are {scheme.upper()}, as {shown}")
    return scheme, f", the scheme that {shown}"


def _tags(sentences: Sentences) -> Iterator[tuple[int, int, str]]:
    """Sentence, word and tag, word by word."""
    assert sentences.tags is not None
    for row, tags in enumerate(sentences.tags):
        for word, tag in enumerate(tags):
            yield row, word, tag


def _unknown(task: TaggingTask, place: str, tag: str) -> InputError:
    if task.learned_scheme != "plain" and parts(tag)[1]:  # the file may spell the tag in another scheme
        kinds = sorted({parts(label)[1] for label in task.labels} - {""})
        return InputError(f"{place}: unknown type '{parts(tag)[1]}' of entity; the model's are {shown(kinds)}")
    return InputError(f"{place}: unknown tag '{tag}'; the model's are {shown(task.labels)}")


def _entity_labels(seen: Sequence[str]) -> list[str]:
    kinds = sorted({parts(tag)[1] for tag in seen if tag != OUTSIDE})
    scheme: Scheme = "iobes" if any(parts(tag)[0] in ("E", "S") for tag in seen) else "iob2"
    return [OUTSIDE, *(f"{prefix}-{kind}" for kind in kinds for prefix in PREFIXES[scheme])]


def tagger_of(labels: Sequence[str]) -> TaggingTask:
    """The task of a model with these labels that was made elsewhere: ner where they are an entity scheme's, else pos.

    Nothing tells what stood around its sentences, so each stands alone.
    """
    task = POS if scheme_of_labels(labels) == "plain" else NER
    return task.model_copy(update={"labels": tuple(labels), "context": "off"})


# Entities, and tags that are names by themselves, such as parts of speech.
NER = TaggingTask(name="ner")
POS = TaggingTask(name="pos", scheme="plain")
