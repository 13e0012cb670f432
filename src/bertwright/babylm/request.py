"""options of an entry → what it is made of: checks of the input, and the record that a continued entry is held to."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bertwright.babylm.settings import ENTRY_SYSTEMS, FIXED, PLAIN_ENTRY, EntrySettings
from bertwright.config import Option
from bertwright.corpus.manifest import MANIFEST, SampleSettings, read_manifest
from bertwright.corpus.sample import parse_mix
from bertwright.corpus.shards import Corpus
from bertwright.errors import InputError, shown
from bertwright.experiments.data import PAPER_TASKS, PaperTask, find_source
from bertwright.files import read_object, refuse_occupied, write_json
from bertwright.finetuning.glue_submission import TASKS
from bertwright.model.system import system_config
from bertwright.pretraining.exposure import SHORTFALL, refuse_uncounted
from bertwright.pretraining.settings import PretrainSettings, merged, resolve_settings
from bertwright.scoring.pairs import Paradigm, read_paradigms
from bertwright.text.document import TextSettings
from bertwright.text.documents import absolute_name, find_inputs
from bertwright.text.word_counts import words_text
from bertwright.training.run_files import ENTRY_RECORD, run_record
from bertwright.training.run_lock import locked

_MEASUREMENTS: Final = ("blimp", "blimp_pairs", "supplement", "glue")
"""Data that may be added to an entry later."""


@dataclass(frozen=True, kw_only=True)
class EntryRequest:
    """Options of an entry.

    corpus       texts, or one corpus folder; mix: in their place sources as SOURCE=FRACTION
    pretraining  typed settings of pre-training, nested as PretrainSettings
    blimp        minimal pairs; blimp_pairs: file with the pairIDs of them to keep; supplement: further pairs
    glue         folder with the files of GLUE's tasks, as `paper --data` reads it
    allow_other_numerics: continue on another kind of processor, or with another device
    """

    out: Path
    entry: EntrySettings
    text: TextSettings
    pretraining: Mapping[str, Any]
    corpus: tuple[str, ...] = ()
    mix: tuple[str, ...] = ()
    blimp: Path | None = None
    blimp_pairs: Path | None = None
    supplement: Path | None = None
    glue: Path | None = None
    allow_other_numerics: bool = False

    @property
    def sample(self) -> SampleSettings:
        """Settings by which the documents of the text are drawn."""
        seed = self.settings.seed
        return SampleSettings(words=self.entry.text_words, seed=seed, mix=parse_mix(self.mix))

    @property
    def typed(self) -> dict[str, Any]:
        """Typed settings of pre-training, over the defaults in which an entry differs from `pretrain`."""
        defaults = {"system": PLAIN_ENTRY.system, "examples": {"second_sentence": PLAIN_ENTRY.examples.second_sentence}}
        return merged(defaults, self.pretraining)

    @property
    def settings(self) -> PretrainSettings:
        """Settings of pre-training before they are adapted to the corpus. InputError where they contradict."""
        return resolve_settings(None, {**self.typed, "epochs": self.entry.passes})

    @property
    def built_corpus(self) -> Path | None:
        """Corpus folder that takes the place of texts; None where the entry builds its own."""
        folder = Path(self.corpus[0]) if len(self.corpus) == 1 else None
        return folder if folder and (folder / MANIFEST).is_file() else None

    @property
    def run(self) -> Path:
        """Run folder of the pre-training."""
        return self.out / "pretraining"

    @property
    def glue_data(self) -> Path:
        """Folder of the rows that are drawn from the tasks of GLUE."""
        return self.out / "glue" / "data"

    def task_run(self, task: PaperTask) -> Path:
        """Return the run folder of a task of GLUE."""
        return self.out / "glue" / task.name

    @property
    def pairs(self) -> dict[str, tuple[Path, Path | None]]:
        """Names of the minimal pairs → their data, and the file with the pairIDs to keep."""
        sets = {"blimp": (self.blimp, self.blimp_pairs), "supplement": (self.supplement, None)}
        return {name: (data, ids) for name, (data, ids) in sets.items() if data}

    @property
    def is_begun(self) -> bool:
        """True where the folder has a record of an entry."""
        return (self.out / ENTRY_RECORD).is_file()

    def glue_tasks(self) -> list[tuple[PaperTask, dict[str, Path]]]:
        """Return the tasks of GLUE whose files are all there, with the files."""
        tasks = [task for name, task in PAPER_TASKS.items() if name in TASKS]
        sources = [(task, find_source(task, self.glue)) for task in tasks if self.glue]
        return [(task, source[1]) for task, source in sources if source]

    def record(self) -> dict[str, Any]:
        """Return what decides the entry, as JSON values; the paths are absolute."""
        free = PretrainSettings.numeric | PretrainSettings.changeable
        typed = {"system": self.typed["system"], **self.pretraining}
        settings = {name: value for name, value in typed.items() if name not in free}
        record = {
            "corpus": [absolute_name(name) for name in self.corpus],
            "mix": [{**each.model_dump(), "name": absolute_name(each.name)} for each in parse_mix(self.mix)],
            "text": self.text.model_dump(mode="json"),
            "entry": self.entry.model_dump(mode="json"),
            "pretraining": settings,
            **{name: str(path.absolute()) if (path := getattr(self, name)) else None for name in _MEASUREMENTS},
        }
        return dict(json.loads(json.dumps(record)))


def check_request(request: EntryRequest) -> dict[str, list[Paradigm]]:
    """Check all input that can be checked without counting words; return the minimal pairs by name.

    Raises InputError for options that contradict, no text, data of minimal pairs that are none, a folder for GLUE
    without a task, and a folder of the entry with other files or another request.
    """
    if bool(request.corpus) == bool(request.mix):
        raise InputError("babylm: expected --corpus TEXT, or --mix SOURCE=FRACTION for each source, and not both")
    decided = FIXED & set(request.pretraining)
    if decided:
        raise InputError(f"babylm: {', '.join(sorted(decided))} follow from --words and --epochs; leave them out")
    if (system := request.settings.system) not in ENTRY_SYSTEMS:
        raise InputError(
            f"--system {system}: an entry needs a masked LM, which scores minimal pairs; expected one of "
            f"{', '.join(ENTRY_SYSTEMS)}"
        )
    if "size" in request.pretraining:  # refuses a size that is none
        system_config(system, request.settings.size, request.entry.vocab_size)
    _check_folder(request)
    if request.built_corpus:
        if not request.is_begun:  # an earlier version stored them
            _refuse_text_options(request)
        _check_built(request.built_corpus, request.entry, run_record(request.run))
    else:
        for inputs in ([source.name] for source in request.sample.mix) if request.mix else [list(request.corpus)]:
            find_inputs(inputs)
    if request.blimp_pairs and not request.blimp:
        raise InputError(f"--blimp-pairs {request.blimp_pairs}: needs --blimp, the data of which it names pairs")
    if request.glue and not request.glue_tasks():
        raise InputError(
            f"--glue {request.glue}: expected the files of at least one task of GLUE, such as glue/RTE/train.tsv and "
            "glue/RTE/dev.tsv below it"
        )
    return {name: _read(f"--{name}", data, ids) for name, (data, ids) in request.pairs.items()}


@contextmanager
def opened(request: EntryRequest) -> Iterator[None]:
    """Make the folder of an entry, or check that it is one of the same request, and hold its lock inside the block.

    Measurements may be added to an entry. Raises InputError for a folder with other files, for another request, and
    where another process works on the entry.
    """
    _check_folder(request)
    request.out.mkdir(parents=True, exist_ok=True)
    with locked(request.out):
        write_json(request.out / ENTRY_RECORD, request.record())
        yield


def _check_folder(request: EntryRequest) -> None:
    """Raise InputError where the folder has other files, or an entry that was begun with another request."""
    if request.is_begun:
        earlier = read_object(request.out / ENTRY_RECORD)
        # Records of version 1.0.0 have no system.
        earlier.setdefault("pretraining", {}).setdefault("system", "bert")
        _refuse_other(request, earlier)
    elif not request.out.is_dir() or any(not path.name.startswith(".") for path in request.out.iterdir()):
        refuse_occupied(request.out)  # hidden files are what a killed start left


def _refuse_other(request: EntryRequest, earlier: Mapping[str, Any]) -> None:
    """Raise InputError where an entry was begun with another request; measurements may have been added.

    The pairIDs to keep belong to the data of minimal pairs: they are added together with these. What nothing was made
    with yet may change: all options before the vocabulary, and those of the pre-training before its run. The seed draws
    the documents too.
    """
    if not (request.out / "tokenizer").is_dir() and not run_record(request.run):
        return
    before, now = _flat(earlier), _flat(request.record())
    is_run = bool(run_record(request.run))
    for name in [name for name in {**before, **now} if is_run or not _is_of_run(name)]:
        data = "blimp" if name == "blimp_pairs" else name
        is_added = data in _MEASUREMENTS and before.get(data) is None
        if not is_added and before.get(name) != now.get(name):
            first, second = (shown(json.dumps(values.get(name))) for values in (before, now))
            raise InputError(
                f"--out {request.out}: its entry was begun with {_option(name)} {first}, now it is {second}; give the "
                "same options, or name another folder"
            )


def _is_of_run(name: str) -> bool:
    """Return True for a value of the record that the pre-training reads first."""
    return name in ("entry.passes", "entry.held_out") or (
        name.startswith("pretraining.") and name != "pretraining.seed"
    )


def _option(name: str) -> str:
    """Return the option of a value of the record; settings of pre-training keep their dotted name."""
    group, _, field = name.rpartition(".")
    if group.startswith("pretraining"):
        return name.partition(".")[2]
    if group == "entry":
        marks = EntrySettings.model_fields[field].metadata
        field = next((mark.name for mark in marks if isinstance(mark, Option)), None) or field
    return f"--{field.replace('_', '-')}"


def _flat(record: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of nested objects by dotted names."""
    flat: dict[str, Any] = {}
    for name, value in record.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


def _refuse_text_options(request: EntryRequest) -> None:
    """Raise InputError for options of the text or the vocabulary beside a corpus, which has both."""
    entry = {name: getattr(request.entry, name) for name in ("vocab_size", "cased")}
    plain = {**EntrySettings().model_dump(), **TextSettings().model_dump()}
    typed = [name for name, value in {**entry, **request.text.model_dump()}.items() if value != plain[name]]
    if typed:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in typed)
        raise InputError(f"--corpus {request.built_corpus}: has a vocabulary and its text; leave out {names}")


def _check_built(folder: Path, entry: EntrySettings, run: Mapping[str, Any]) -> None:
    """Raise InputError where the words of a corpus were not counted, or are not those of the budget.

    run: record of the pre-training; a corpus other than that of a run that has begun is refused too.
    """
    fingerprint = read_manifest(folder).fingerprint
    if run.get("data", {}).get("corpus", fingerprint) != fingerprint:
        raise InputError(
            f"--corpus {folder}: is another corpus than the one that the entry was trained on; name that one, or "
            "another --out"
        )
    refuse_uncounted([Corpus.open(folder)], "--words")
    words = read_manifest(folder).words or 0
    if not (1 - SHORTFALL) * entry.text_words <= words <= entry.text_words:
        raise InputError(
            f"--corpus {folder}: has {words:,} words, expected {words_text(entry.text_words)} (--words); give the "
            "number of its words, or texts from which as many words are drawn"
        )


def _read(option: str, data: Path, ids: Path | None) -> list[Paradigm]:
    try:
        return read_paradigms(data, pair_ids=ids)
    except InputError as error:
        raise InputError(str(error).replace("--data ", f"{option} ", 1).replace("--pairs ", "--blimp-pairs ")) from None
