"""machine, model, corpus, data → findings: what costs people weeks, looked for before they are spent."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bertwright.console import Status
from bertwright.corpus.shards import Corpus
from bertwright.doctor.corpus import look_at_corpus, sentences_of
from bertwright.doctor.data import Data, fit_findings, labels_of_model, look_at_data
from bertwright.doctor.findings import Finding, refused, summary
from bertwright.doctor.machine import machine_findings, software_findings
from bertwright.doctor.model import Patient, look_at_model
from bertwright.doctor.training import classifier_findings, judge_masked_lm, pretraining_findings
from bertwright.errors import InputError, RunFailed
from bertwright.model.config import attends_both_ways, encoder_shape, size_config
from bertwright.model.folder import SavedModel
from bertwright.tasks.classification.spec import ClassificationTask, get_task, with_columns
from bertwright.tasks.kinds import task_of
from bertwright.tasks.spec import TaskSpec, get_spec
from bertwright.text.base_tokenizer import BaseTokenizer
from bertwright.text.open_tokenizer import open_tokenizer_folder
from bertwright.text.wordpiece import Tokenizer

_ONLY_TABLES: Final = "the doctor looks at tables of sentences and pairs; finetune checks other files as it reads them"
_ANY: Final = "classify"
"""The task of a table of which nothing else is said."""
_SIZE: Final = "tiny"
"""Of the random encoder that learns a batch of a corpus by heart where no model is named."""


@dataclass(frozen=True)
class Request:
    """What to look at; all but the machine only where it is named. `quick` leaves out what computes."""

    model: str | None = None
    corpus: Path | None = None
    data: Path | None = None
    task: str | None = None
    text: tuple[str, ...] = ()
    label: str | None = None
    tokenizer: Path | None = None
    max_length: int | None = None
    quick: bool = False


def examine(request: Request) -> dict[str, Any]:
    """Look at everything that is named; {"findings", "errors", "warnings"}, a text for people, and the exit code.

    InputError for a request that makes no sense; what is wrong with what it names is a finding.
    """
    _refuse_senseless(request)
    examination = Examination(request)
    with Status() as status:
        for doing, part in examination.parts():
            status.update(doing)
            examination.findings += part()
    return summary(examination.findings)


def _refuse_senseless(request: Request) -> None:
    if request.task is not None and not isinstance(get_spec(request.task), ClassificationTask):
        raise InputError(f"--task {request.task}: {_ONLY_TABLES}; leave --data out, or name the task of a table")
    with_columns(get_task(request.task or _ANY), text=request.text, label=request.label)
    if request.data is None and (request.text or request.label or request.task is not None):
        raise InputError("--task, --text-column and --label-column say how --data PATH is read; name it")
    if request.max_length is not None and request.max_length < 8:
        raise InputError(f"--max-length {request.max_length}: at least 8")


@dataclass
class Examination:
    """What was opened so far, for the parts after it, and what was found."""

    request: Request
    findings: list[Finding] = field(default_factory=list)
    patient: Patient = field(default_factory=Patient)
    corpus: Corpus | None = None
    matches: bool = False
    data: Data | None = None

    def parts(self) -> Iterator[tuple[str, Any]]:
        """What is done, and the function that does it, in order."""
        request = self.request
        yield "measuring the machine", lambda: machine_findings(quick=request.quick)
        yield "compiling a function", lambda: software_findings(quick=request.quick)
        if request.model:
            yield f"reading {request.model}", self.model
        if request.corpus:
            yield f"reading {request.corpus}", self.read_corpus
        if request.model and not request.quick:
            yield f"asking {request.model}", self.masked_lm
        if request.data:
            yield f"reading {request.data}", self.read_data
        yield "learning one batch by heart", self.left_out if request.quick else self.training

    def model(self) -> list[Finding]:
        """The model folder, or the size of random weights."""
        assert self.request.model
        own = self.request.corpus / "tokenizer" if self.request.corpus else None
        self.patient, found = look_at_model(self.request.model, tokenizer=self.request.tokenizer or own)
        return found

    def read_corpus(self) -> list[Finding]:
        """The corpus, against the model's tokenizer."""
        assert self.request.corpus
        model = self.patient.tokenizer
        self.corpus, self.matches, found = look_at_corpus(self.request.corpus, model=model, quick=self.request.quick)
        return found

    def masked_lm(self) -> list[Finding]:
        """What a model with that head is worth, on its own text where there is some."""
        model, tokenizer = self.patient.runs, self.patient.tokenizer
        if model is None or not isinstance(tokenizer, Tokenizer) or not hasattr(model, "masked_lm"):
            return []
        if tokenizer.vocab_size > model.encoder.config.vocab_size:
            return []  # an error by now: there are pieces without an embedding
        try:
            own = sentences_of(self.corpus) if self.corpus and self.matches else None
        except InputError:  # a damaged corpus, which is an error by now
            own = None
        return [judge_masked_lm(model, tokenizer, own or None)]

    def read_data(self) -> list[Finding]:
        """The table, and how it fits the model."""
        assert self.request.data
        if other := self.other_task():
            text = f"{self.request.data}: not looked at, as the model was fine-tuned for {other}: {_ONLY_TABLES}"
            advice = "nothing; for a table to go on with, name its columns (--text-column) or its --task"
            return [Finding("data", "reads", "note", other, text, advice)]
        self.data, found = look_at_data(self.task(), self.request.data)
        saved = self.patient.saved
        try:
            words = self.words()
        except (InputError, OSError) as error:
            words = None
            found.append(refused("data", "tokenizer", error=error, advice="name a tokenizer or model folder"))
        if self.data and saved:
            found += labels_of_model(saved, self.data.task)
            found += self.too_long(saved)
        if self.data and words:
            found += fit_findings(self.data, words, max_length=self.max_length())
        return found

    def too_long(self, saved: SavedModel) -> list[Finding]:
        """Rows longer than the model has positions, which no training begins with."""
        positions = saved.config.max_positions
        if self.max_length() <= positions:
            return []
        text = f"rows of {self.max_length()} tokens are asked for, and {saved.place} has {positions} positions"
        advice = f"--max-length {positions} at most, here and in finetune"
        return [Finding("data", "positions", "error", self.max_length(), text, advice)]

    def left_out(self) -> list[Finding]:
        """What --quick did not do."""
        parts = ["matrix rates", "compiling"]
        parts += ["masked LM"] if self.request.model else []
        parts += ["most of the corpus"] if self.request.corpus else []
        parts += ["one batch"] if self.request.corpus or (self.request.model and self.request.data) else []
        text = f"--quick left out: {', '.join(parts)}"
        return [Finding("training", "left out", "note", parts, text, "look again without --quick before a long run")]

    def training(self) -> list[Finding]:
        """One batch of the table on the model, or of the corpus on random weights."""
        saved, words = self.patient.saved, self.patient.tokenizer
        found: list[Finding] = []
        fits = saved and words and words.vocab_size <= saved.config.vocab_size
        if self.request.model and self.request.data and not (self.data and fits) and not self.other_task():
            text = "not tried: model and data must open, and the tokenizer fit the model"
            found.append(Finding("training", "one batch", "note", None, text, "set right what is an error above"))
        try:
            if self.data and saved and words and fits:
                found += classifier_findings(
                    saved, words, self.data.task, self.data.train, max_length=self.max_length()
                )
            is_random = saved is not None and saved.weights is None
            if self.corpus and self.matches and is_random and saved and not attends_both_ways(saved.config):
                text = f"{saved.place}: not tried: the trial is of masked LM, and this is a language model"
                found.append(Finding("training", "begins", "note", saved.place, text, "nothing: pretrain trains it"))
            elif self.corpus and self.matches and (is_random or not self.request.model):
                config = (
                    encoder_shape(saved.config, saved.place)
                    if saved
                    else size_config(_SIZE, self.corpus.manifest.vocab_size)
                )
                found += pretraining_findings(config, self.corpus)
        except (InputError, RunFailed) as error:
            found.append(
                refused("training", "begins", error=error, advice="set right what was found above, then look again")
            )
        return found

    def task(self) -> ClassificationTask:
        """The task and columns that were given; what was not, as the model was fine-tuned."""
        request, own = self.request, self.own_task()
        if not isinstance(own, ClassificationTask) or request.task not in (None, own.name):
            return with_columns(get_task(request.task or _ANY), text=request.text, label=request.label)
        with suppress(InputError):  # it may be of a module that is not here; its labels are those of the data
            named = get_task(own.name)
            own = named.model_copy(update={"text": own.text, "label": own.label}) if named.kind == own.kind else own
        return with_columns(own, text=request.text, label=request.label)

    def other_task(self) -> str | None:
        """The model's task, where nothing says that the data are not of it and it is none on sentences and pairs."""
        request, own = self.request, self.own_task()
        told = request.text or request.label or request.task is not None
        return None if told or not own or isinstance(own, ClassificationTask) else own.name

    def own_task(self) -> TaskSpec | None:
        """What the model was fine-tuned for."""
        saved = self.patient.saved
        if not saved or "task" not in saved.extra:
            return None
        with suppress(InputError):  # a note of another version
            return task_of(saved)
        return None

    def words(self) -> BaseTokenizer | None:
        """The model's tokenizer, else the one that was named."""
        if self.patient.tokenizer or not self.request.tokenizer:
            return self.patient.tokenizer
        return open_tokenizer_folder(self.request.tokenizer)

    def max_length(self) -> int:
        """As given, or as the model was fine-tuned with, or as finetune has it."""
        noted = self.patient.saved.extra.get("max_length") if self.patient.saved else None
        return self.request.max_length or (noted if type(noted) is int else self.task().max_length)
