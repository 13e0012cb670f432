"""specifications of tagging tasks: words in, a tag for each word or the entities out (paper §5.3).

Files may have any known scheme. Entities are learned as IOB2, or as IOBES where the training file has it (or BMES or
BILOU, which mean the same), and the tags of every file are converted to that. Training, evaluation and prediction read,
decode and score with the functions below.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from bertwright.console import say
from bertwright.errors import InputError
from bertwright.tables.bad_rows import BadRow, bad_rows_of
from bertwright.tables.files import InputFormat
from bertwright.tasks.finite import check_finite, softmax
from bertwright.tasks.spec import TaskSpec, listed_labels, say_alike_labels
from bertwright.tasks.tagging.conll import Columns, Sentences, read_tag_lines, sentences_of
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
    usual_spelling,
)
from bertwright.text.document import OnError, raise_error

_HINT: Final = (
    "; entities have tags such as B-PER, I-PER and O, in IOB1, IOB2, IOBES, BMES or BILOU; if the tags are in another "
    "column, set --label-column; for tags that are not entities, such as parts of speech, use the task pos"
)
FEW_WORDS: Final = 20  # with fewer words, tags that rarely repeat do not count as a wrong column
Context = Literal["auto", "documents", "file", "off"]


class TaggingTask(TaskSpec):
    """A task with one tag per word; with its labels it is stored in the model folder."""

    settable: ClassVar[tuple[str, ...]] = ("scheme", "context")
    formats: ClassVar[tuple[InputFormat, ...]] = ("jsonl",)

    scheme: Literal["auto", "iob1", "iob2", "iobes", "plain"] = "auto"  # of the files; auto: detected in each file
    context: Context = "auto"  # context of a sentence; `learn_tags` turns auto into documents or off
    word: str | None = None  # column number, or field of JSON lines
    tag: str | None = None
    labels: tuple[str, ...] = ()  # in the order of the logits; empty: `learn_tags` finds them in the training data

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if len(set(self.labels)) != len(self.labels):
            raise ValueError("labels must be distinct")
        if self.labels and self.scheme != "plain" and scheme_of_labels(self.labels) == "plain":
            raise ValueError(f"labels {', '.join(self.labels)} do not fit the scheme {self.scheme}")
        return self

    def refuse_change(self, changed: Self) -> None:
        """Raise ValueError where entities would become plain tags, or plain tags entities."""
        if (changed.scheme == "plain") != (self.scheme == "plain"):
            raise ValueError("ner needs an entity scheme, pos has none; choose the other task")

    @property
    def columns(self) -> Columns:
        """Return the columns of words and tags."""
        return Columns(self.word, self.tag)

    @property
    def learned_scheme(self) -> Scheme:
        """Return the scheme of the labels."""
        return "plain" if self.scheme == "plain" else scheme_of_labels(self.labels)


@dataclass(frozen=True)
class Tagged:
    """Predictions for W words: `tags` of each of N sentences, `probabilities` [W] of these tags."""

    tags: tuple[tuple[str, ...], ...]
    probabilities: NDArray[np.float64]

    @property
    def by_sentence(self) -> list[NDArray[np.float64]]:
        """Return the probabilities of each sentence."""
        return np.split(self.probabilities, np.cumsum([len(tags) for tags in self.tags])[:-1])


def with_tag_columns(task: TaggingTask, *, text: Sequence[str] = (), label: str | None = None) -> TaggingTask:
    """Return the task with other columns or fields for words and tags."""
    if len(text) > 1:
        raise InputError(f"{len(text)} text columns ({', '.join(text)}); {task.name} needs exactly one")
    return task.model_copy(update={"word": text[0] if text else task.word, "tag": label or task.tag})


def for_model(requested: TaggingTask, trained: TaggingTask) -> TaggingTask:
    """Return the task for the evaluation of a model: its labels, and its settings where `requested` has none."""
    if (requested.scheme == "plain") != (trained.scheme == "plain"):
        raise InputError(
            f"{requested.name} and {trained.name}, which the model was fine-tuned for, have different kinds of tags"
        )
    settings = {
        "scheme": trained.scheme if requested.scheme == "auto" else requested.scheme,
        "context": trained.context if requested.context == "auto" else requested.context,
        "word": requested.word or trained.word,
        "tag": requested.tag or trained.tag,
        "input_format": requested.input_format,
        "on_error": requested.on_error,
    }
    return trained.model_copy(update=settings)


def read_tagged(task: TaggingTask, path: Path | str) -> Sentences:
    """Read a file of sentences; their tags are in the learned scheme, and the task's own where it has labels.

    Raises InputError with file and line for a sentence that cannot be used; with `on_error` "skip" it is left out.
    """
    with bad_rows_of(path, task.on_error, unit="sentence") as bad_rows:
        lines = read_tag_lines(path, task.input_format, strict=task.on_error == "stop")
        sentences = sentences_of(lines, task.columns, with_tags=True, on_error=bad_rows.add)
        sentences = as_learned(task, sentences, bad_rows.add)
        if task.labels:
            sentences = _usable(sentences, partial(_check_known, task, sentences), bad_rows.add)
    return replace(sentences, left_out=dict(bad_rows.counts))


def as_learned(task: TaggingTask, sentences: Sentences, on_error: OnError = raise_error) -> Sentences:
    """Return sentences with their tags in the learned scheme; the detected scheme is printed.

    on_error   function that is called with the BadRow of each sentence with a tag outside the scheme or an impossible
               sequence; if it returns, the sentence is left out

    With the task's `on_error` "skip" the scheme is the one that most sentences follow.
    """
    assert sentences.tags is not None
    original = tags = sentences.tags
    skips = task.on_error == "skip"
    if task.scheme != "plain":
        usual = usual_spelling((tag for row in original for tag in row), most=skips)
        tags = tuple(tuple(usual.get(tag, tag) for tag in row) for row in original)
    spelled = replace(sentences, tags=tags)
    if skips and task.scheme == "auto":
        scheme, note = _scheme_of_most(spelled), ""
    else:
        scheme, note = _scheme(task, spelled, original)

    def check(row: int) -> None:
        if problem := first_impossible(tags[row], scheme):
            word, reason = problem
            hint = "" if "impossible" in reason else _HINT
            read_as = _read_as(original[row][word], tags[row][word])
            message = f"{sentences.location(row, word)}: {reason}{read_as}{note}{hint}"
            raise BadRow("with a tag that the scheme forbids", message)

    usable = _usable(spelled, check, on_error)
    assert usable.tags is not None
    learned = task.learned_scheme if task.labels else "iob2" if scheme == "iob1" else scheme
    return replace(usable, tags=tuple(in_scheme(row_tags, scheme, learned) for row_tags in usable.tags))


def _usable(sentences: Sentences, check: Callable[[int], None], on_error: OnError) -> Sentences:
    """Return the sentences for whose rows `check` raises no BadRow; `on_error` is called with each error."""
    kept = []
    for row in range(len(sentences)):
        try:
            check(row)
        except BadRow as error:
            on_error(error)
        else:
            kept.append(row)
    if not kept:
        raise InputError(f"{sentences.source}: holds no sentences that can be used")
    return sentences if len(kept) == len(sentences) else sentences.select(kept)


def _scheme_of_most(sentences: Sentences) -> Scheme:
    """Return the scheme that allows most sentences, which is printed; on ties the one that `detect` finds."""
    assert sentences.tags is not None
    detected, where = detect(sentences.tags)
    schemes: tuple[Scheme, ...] = (detected, "iob2", "iob1", "iobes")
    allowed = {
        scheme: sum(first_impossible(row, scheme) is None for row in sentences.tags)
        for scheme in dict.fromkeys(schemes)
    }
    best = max(allowed, key=lambda scheme: allowed[scheme])
    if where:
        say(f"{sentences.source}: tags are {best.upper()}, which most sentences follow")
    return best


def learn_tags(task: TaggingTask, sentences: Sentences) -> TaggingTask:
    """Return the task with labels and context from the training data.

    The labels of a type include all tags of its scheme, so that entities of several words can be predicted where
    training has only single words. A task that has labels keeps them.
    """
    assert sentences.tags is not None
    if task.context == "auto":
        task = task.model_copy(update={"context": "documents" if sentences.documents else "off"})
    if task.labels:
        return task
    counts = Counter(tag for tags in sentences.tags for tag in tags)
    seen = sorted(counts)
    labels = seen if task.scheme == "plain" else _entity_labels(seen)
    if len(labels) < 2:
        content = f"only the tag '{labels[0]}'" if task.scheme == "plain" else "no entity"
        raise InputError(f"{sentences.source}: expected at least two labels, found {content}")
    if sentences.num_words >= FEW_WORDS and 2 * len(seen) > sentences.num_words:
        raise InputError(
            f"{sentences.source}: expected tags, got {len(seen)} different values for {sentences.num_words} words, "
            f"such as '{seen[0]}'; set --label-column to the number of the tags' column"
        )
    say_alike_labels(sentences.source, counts)
    return task.model_copy(update={"labels": tuple(labels)})


def label_ids(task: TaggingTask, sentences: Sentences) -> NDArray[np.int64]:
    """Return the label id of every word [W]. Raises InputError with file and line for an unknown label."""
    ids = {label: number for number, label in enumerate(task.labels)}
    labels = np.empty(sentences.num_words, dtype=np.int64)
    for index, (row, word, tag) in enumerate(_tags(sentences)):
        if tag not in ids:
            raise _unknown(task, sentences.location(row, word), tag)
        labels[index] = ids[tag]
    return labels


def _check_known(task: TaggingTask, sentences: Sentences, row: int) -> None:
    """Raise BadRow with file and line for the first type of a sentence (or plain tag) that the labels do not have."""
    assert sentences.tags is not None
    scheme = task.learned_scheme
    known = set(task.labels) if scheme == "plain" else {parts(label)[1] for label in task.labels}
    for word, tag in enumerate(sentences.tags[row]):
        if (tag if scheme == "plain" else parts(tag)[1]) not in known:
            raise _unknown(task, sentences.location(row, word), tag)


def decode_tags(task: TaggingTask, logits: NDArray[Any], sentences: Sentences) -> Tagged:
    """Return the most probable tag of each word from logits [W, L] in the order of the words.

    Each word is decided alone, as in the paper. Impossible sequences may result; `entities_of` reads them. Raises
    RunFailed unless all logits are finite.
    """
    logits = np.asarray(logits, dtype=np.float64)
    words = [(row, word) for row, of_row in enumerate(sentences.words) for word in range(len(of_row))]
    check_finite(logits, lambda index: sentences.location(*words[index]))
    best = logits.argmax(axis=1)
    names = iter([task.labels[value] for value in best])
    return Tagged(
        tags=tuple(tuple(next(names) for _ in words) for words in sentences.words),
        probabilities=softmax(logits).max(axis=1),
    )


def possible(task: TaggingTask, tags: Sequence[str]) -> tuple[str, ...]:
    """Return tags that the scheme allows, with the same entities as the predicted tags."""
    scheme = task.learned_scheme
    return tags_of(entities_of(tags, scheme), len(tags), scheme)


def score_tags(task: TaggingTask, tags: Sequence[Sequence[str]], sentences: Sentences) -> dict[str, float]:
    """Return the metrics of predicted tags; the first one selects the best epoch.

    f1, precision, recall    those of entities, as conlleval; absent for plain tags, where they equal the accuracy
    accuracy                 fraction of words with the right tag
    TYPE.f1, …               the same for each type (each tag where tags are plain)
    """
    assert sentences.tags is not None
    scheme = task.learned_scheme
    predicted = [entities_of(row, scheme) for row in tags]
    true = [entities_of(row, scheme) for row in sentences.tags]
    rows = zip(tags, sentences.tags, strict=True)
    right = sum(tag == gold for row, golds in rows for tag, gold in zip(row, golds, strict=True))
    overall, by_type = count_entities(predicted, true)
    accuracy = {"accuracy": right / sentences.num_words}
    metrics = accuracy if scheme == "plain" else overall.metrics | accuracy
    for kind, counts in by_type.items():
        metrics |= {f"{kind}.{name}": value for name, value in counts.metrics.items()}
    return metrics


def _read_as(original: str, usual: str) -> str:
    """Return a note for messages where a file spells a tag in another way."""
    return f" (the file has '{original}')" if original != usual else ""


def _scheme(task: TaggingTask, sentences: Sentences, original: tuple[tuple[str, ...], ...]) -> tuple[Scheme, str]:
    """Return the scheme of a file, and a note for error messages about it. `original` are the tags of the file."""
    if task.scheme != "auto":
        return task.scheme, ""
    assert sentences.tags is not None
    scheme, where = detect(sentences.tags)
    if not where:
        return scheme, ""
    row, word = where
    tag = sentences.tags[row][word]
    evidence = f"'{tag}'{_read_as(original[row][word], tag)} {sentences.line_of_word(row, word)} shows"
    say(f"{sentences.source}: tags are {scheme.upper()}, as {evidence}")
    return scheme, f", the scheme that {evidence}"


def _tags(sentences: Sentences) -> Iterator[tuple[int, int, str]]:
    """Yield sentence, word and tag of every word."""
    assert sentences.tags is not None
    for row, tags in enumerate(sentences.tags):
        for word, tag in enumerate(tags):
            yield row, word, tag


def _unknown(task: TaggingTask, position: str, tag: str) -> BadRow:
    if task.learned_scheme != "plain" and parts(tag)[1]:  # the file may spell the tag in another scheme
        kinds = sorted({parts(label)[1] for label in task.labels} - {""})
        message = f"{position}: unknown entity type '{parts(tag)[1]}'; the model has {listed_labels(kinds)}"
        return BadRow("with an unknown type", message)
    return BadRow("with an unknown tag", f"{position}: unknown tag '{tag}'; the model has {listed_labels(task.labels)}")


def _entity_labels(seen: Sequence[str]) -> list[str]:
    kinds = sorted({parts(tag)[1] for tag in seen if tag != OUTSIDE})
    scheme: Scheme = "iobes" if any(parts(tag)[0] in ("E", "S") for tag in seen) else "iob2"
    return [OUTSIDE, *(f"{prefix}-{kind}" for kind in kinds for prefix in PREFIXES[scheme])]


def tagger_of(labels: Sequence[str]) -> TaggingTask:
    """Return the task of an imported model with these labels: ner where they have an entity scheme, else pos.

    The context of its training is unknown, so each sentence is read alone.
    """
    task = POS if scheme_of_labels(labels) == "plain" else NER
    return task.model_copy(update={"labels": tuple(labels), "context": "off"})


# Entities, and plain tags such as parts of speech.
NER = TaggingTask(name="ner")
POS = TaggingTask(name="pos", scheme="plain")
