"""machine, model, corpus, data → findings: checks for mistakes that show only after weeks of training."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bertwright.console import Status
from bertwright.corpus.shards import Corpus
from bertwright.doctor.corpus import check_corpus, sample_sentences
from bertwright.doctor.data import Data, check_data, fit_findings, labels_of_model, table_baselines
from bertwright.doctor.findings import Finding, command_result, refused
from bertwright.doctor.machine import machine_findings, software_findings
from bertwright.doctor.model import OpenedModel, check_model
from bertwright.doctor.task_files import check_task_files
from bertwright.doctor.training import classifier_findings, masked_lm_finding, pretraining_findings
from bertwright.errors import InputError, RunFailed
from bertwright.finetuning.setup import with_row_tokens, with_task_tokens
from bertwright.model.config import attends_both_ways, encoder_shape, size_config
from bertwright.model.folder import SavedModel
from bertwright.tables.bad_rows import BadRowPolicy
from bertwright.tables.files import InputFormat
from bertwright.tasks.classification.spec import ClassificationTask, get_task
from bertwright.tasks.kinds import task_of, with_named_columns
from bertwright.tasks.spec import TaskSpec, get_spec, with_reading
from bertwright.text.base_tokenizer import BaseTokenizer, MaskTokenizer
from bertwright.text.open_tokenizer import open_tokenizer_folder

_ANY: Final = "classify"
"""Task of a table for which neither --task nor the model names one."""
_SIZE: Final = "tiny"
"""Size of the random encoder that is trained on one batch of a corpus where no model is named."""


@dataclass(frozen=True)
class Request:
    """Inputs to check. The machine is always checked, the others where they are named; `quick` computes nothing.

    Where only data are named, the machine is not measured and nothing is compiled.
    """

    model: str | None = None
    corpus: Path | None = None
    data: Path | None = None
    task: str | None = None
    text: tuple[str, ...] = ()
    label: str | None = None
    tokenizer: Path | None = None
    max_length: int | None = None
    quick: bool = False
    input_format: InputFormat = "auto"
    on_error: BadRowPolicy = "stop"

    @property
    def only_data(self) -> bool:
        """Return whether data are named, and neither a model nor a corpus that would be computed with."""
        return self.data is not None and self.model is None and self.corpus is None


def examine(request: Request) -> dict[str, Any]:
    """Check everything that is named; return findings, counts, a text for people, and the exit code.

    Raises InputError where the options contradict each other. A fault in a named input is a finding.
    """
    _refuse_contradictions(request)
    examination = Examination(request)
    with Status() as status:
        for title, part in examination.parts():
            status.update(title)
            examination.findings += part()
    return command_result(examination.findings)


def _refuse_contradictions(request: Request) -> None:
    task = get_spec(_ANY if request.task is None else request.task)
    with_named_columns(task, text=request.text, label=request.label)
    describes_data = request.text or request.label or request.input_format != "auto" or request.on_error != "stop"
    if request.data is None and (describes_data or request.task is not None):
        raise InputError(
            "--task, --text-column, --label-column, --input-format and --on-error describe --data PATH, and it is "
            "missing: give it"
        )
    if request.max_length is not None and request.max_length < 8:
        raise InputError(f"--max-length: expected 8 or more, got {request.max_length}")


@dataclass
class Examination:
    """State of one examination: the inputs that are open already, and the findings so far."""

    request: Request
    findings: list[Finding] = field(default_factory=list)
    opened: OpenedModel = field(default_factory=OpenedModel)
    corpus: Corpus | None = None
    corpus_fits: bool = False  # the tokenizer of the corpus is the model's, or there is no model
    data: Data | None = None

    def parts(self) -> Iterator[tuple[str, Callable[[], Iterable[Finding]]]]:
        """Yield (title, function that returns findings) for each part, in order."""
        request = self.request
        quick = request.quick or request.only_data
        yield "measuring the machine", lambda: machine_findings(quick=quick)
        yield "looking at the software" if quick else "compiling a function", lambda: software_findings(quick=quick)
        if request.model:
            yield f"reading {request.model}", self.model
        if request.corpus:
            yield f"reading {request.corpus}", self.read_corpus
        if request.model and not request.quick:
            yield f"filling masks with {request.model}", self.masked_lm
        if request.data:
            yield f"reading {request.data}", self.read_data
        yield ("noting what was left out", self.left_out) if quick else ("training on one batch", self.training)

    def model(self) -> list[Finding]:
        """Open and check the model folder, or random weights of the named size."""
        assert self.request.model
        tokenizer = self.request.tokenizer
        if tokenizer is None and self.request.corpus:
            tokenizer = self.request.corpus / "tokenizer"
        self.opened, findings = check_model(self.request.model, tokenizer_folder=tokenizer)
        return findings

    def read_corpus(self) -> list[Finding]:
        """Open and check the corpus, and compare its tokenizer with the model's."""
        assert self.request.corpus
        model = self.opened.tokenizer
        self.corpus, self.corpus_fits, findings = check_corpus(
            self.request.corpus, model=model, quick=self.request.quick
        )
        return findings

    def masked_lm(self) -> list[Finding]:
        """Measure masked LM, on the model's own corpus where it was named; empty for a model without that head."""
        model, tokenizer = self.opened.with_heads, self.opened.tokenizer
        if model is None or not isinstance(tokenizer, MaskTokenizer) or not hasattr(model, "masked_lm"):
            return []
        if tokenizer.vocab_size > model.encoder.config.vocab_size:
            return []  # already an error: some pieces have no embedding
        try:
            sentences = sample_sentences(self.corpus) if self.corpus and self.corpus_fits else None
        except InputError:  # a damaged corpus, already an error
            sentences = None
        return [masked_lm_finding(model, tokenizer, sentences or None)]

    def read_data(self) -> list[Finding]:
        """Read and check the table, and compare it with the model; of other files, read them and compute baselines."""
        assert self.request.data
        task = self.task()
        if not isinstance(task, ClassificationTask):
            return check_task_files(task, self.request.data, quick=self.request.quick)
        self.data, findings = check_data(task, self.request.data)
        saved = self.opened.saved
        try:
            named = self.tokenizer()
            tokenizer = named and with_row_tokens(named, str(self.request.tokenizer or self.request.model))
        except (InputError, OSError) as error:
            tokenizer = None
            findings.append(refused("data", "tokenizer", error=error, advice="name a tokenizer or model folder"))
        if self.data and saved:
            findings += labels_of_model(saved, self.data.task)
            findings += self.too_long(saved)
        if self.data and not self.request.quick:
            findings.append(table_baselines(self.data))
        if self.data and tokenizer:
            findings += fit_findings(self.data, tokenizer, max_length=self.max_length())
        return findings

    def too_long(self, saved: SavedModel) -> list[Finding]:
        """Return an error where --max-length exceeds the model's positions: training would refuse to start."""
        positions = saved.config.max_positions
        if self.max_length() <= positions:
            return []
        text = f"--max-length is {self.max_length()}, and {saved.source} has {positions} positions"
        advice = f"give --max-length {positions} or less, here and in finetune"
        return [Finding("data", "positions", "error", self.max_length(), text, advice)]

    def left_out(self) -> list[Finding]:
        """Return a note that lists the checks that were left out: by --quick, or where only data are named."""
        parts = ["matrix rates", "compiling"]
        if not self.request.quick:
            text = f"not checked, since only data are named: {', '.join(parts)}"
            advice = "name the model too (--model), or run doctor without options, before a long run"
            return [Finding("training", "left out", "note", parts, text, advice)]
        parts += ["masked LM"] if self.request.model else []
        parts += ["baselines"] if self.request.data else []
        parts += ["most of the corpus"] if self.request.corpus else []
        parts += ["one batch"] if self.request.corpus or (self.request.model and self.request.data) else []
        text = f"--quick left out: {', '.join(parts)}"
        return [Finding("training", "left out", "note", parts, text, "check again without --quick before a long run")]

    def training(self) -> list[Finding]:
        """Train on one batch: of the table with the model, or of the corpus with random weights."""
        saved, tokenizer = self.opened.saved, self.opened.tokenizer
        findings: list[Finding] = []
        fits = saved and tokenizer and tokenizer.vocab_size <= saved.config.vocab_size
        is_table = self.request.data and isinstance(self.task(), ClassificationTask)
        if self.request.model and is_table and not (self.data and fits):
            text = "not tried: model and data must open, and the tokenizer must fit the model"
            findings.append(Finding("training", "one batch", "note", None, text, "correct the errors above first"))
        try:
            if self.data and saved and tokenizer and fits:
                saved, tokenizer = with_task_tokens(saved, tokenizer)
                findings += classifier_findings(
                    saved, tokenizer, self.data.task, self.data.train, max_length=self.max_length()
                )
            if self.corpus and self.corpus_fits:
                findings += self.train_on_corpus(self.corpus)
        except (InputError, RunFailed) as error:
            findings.append(refused("training", "begins", error=error, advice="correct the errors above, check again"))
        return findings

    def train_on_corpus(self, corpus: Corpus) -> Iterable[Finding]:
        """Train random weights on one batch of the corpus; empty where the model has weights."""
        saved = self.opened.saved
        if saved is None:
            if self.request.model:
                return []
            return pretraining_findings(size_config(_SIZE, corpus.manifest.vocab_size), corpus)
        if saved.weights is not None:
            return []
        if not attends_both_ways(saved.config):
            text = f"{saved.source}: not tried: the trial trains masked LM, and this is a language model"
            return [Finding("training", "begins", "note", saved.source, text, "nothing: pretrain trains it")]
        return pretraining_findings(encoder_shape(saved.config, saved.source), corpus)

    def task(self) -> TaskSpec:
        """Return the task of the data: the named task and columns, the rest from the model's own task.

        A model of another kind of task brings its task, unless columns of a table are named.
        """
        request, task = self.request, self.model_task()
        names_task = request.task or request.text or request.label
        if task and not names_task and not isinstance(task, ClassificationTask):
            return self.as_requested(task)
        if not isinstance(task, ClassificationTask) or request.task not in (None, task.name):
            return self.as_requested(get_spec(request.task or _ANY))
        with suppress(InputError):  # the task may be defined in a module that is absent; the data bring the labels then
            named = get_task(task.name)
            task = (
                named.model_copy(update={"text": task.text, "label": task.label}) if named.kind == task.kind else task
            )
        return self.as_requested(task)

    def as_requested(self, task: TaskSpec) -> TaskSpec:
        """Return the task with the columns, the format and the treatment of bad rows that the options name."""
        request = self.request
        task = with_named_columns(task, text=request.text, label=request.label)
        return with_reading(task, input_format=request.input_format, on_error=request.on_error)

    def model_task(self) -> TaskSpec | None:
        """Return the task that the model was fine-tuned for; None where config.json notes none that can be read."""
        saved = self.opened.saved
        if not saved or "task" not in saved.extra:
            return None
        with suppress(InputError):  # written by another version
            return task_of(saved)
        return None

    def tokenizer(self) -> BaseTokenizer | None:
        """Return the model's tokenizer, or else that of --tokenizer."""
        if self.opened.tokenizer or not self.request.tokenizer:
            return self.opened.tokenizer
        return open_tokenizer_folder(self.request.tokenizer)

    def max_length(self) -> int:
        """Return tokens per row: --max-length, or else the model's own, or else the task's default."""
        noted = self.opened.saved.extra.get("max_length") if self.opened.saved else None
        return self.request.max_length or (noted if type(noted) is int else self.task().max_length)
