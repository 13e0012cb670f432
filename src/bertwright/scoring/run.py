"""file of sentences → the same file with scores: the command `score sentences`."""

from dataclasses import asdict, fields
from typing import Any, Final

from bertwright.errors import InputError, shown
from bertwright.output_paths import refuse_folder, refuse_target
from bertwright.scoring.scorer import SentenceScorer, open_scorer
from bertwright.scoring.sentences import SentenceScore, sentence_scores, total_score
from bertwright.scoring.settings import ScoreSettings
from bertwright.tables.files import InputFormat, table_ending
from bertwright.tables.reader import Table, add_columns, refuse_guessed_header
from bertwright.tables.writer import OutputFormat, PredictRequest, answer_tables
from bertwright.training.hardware import prepare_processor
from bertwright.training.settings import Device
from bertwright.training.trial import CPU_ADVICE, advise_on_full_gpu

_TEXT_COLUMNS: Final = ("sentence", "text")
_DIGITS: Final = 6
"""Number of decimals of a number in a table."""


def score_file(
    model: str,
    source: str,
    target: str,
    *,
    settings: ScoreSettings,
    text: str | None = None,
    precision: str | None = None,
    input_format: InputFormat = "auto",
    output_format: OutputFormat = "auto",
    device: Device = "cpu",
) -> dict[str, Any]:
    """Score every row of a file, add the scores as columns, and return those of the whole file.

    source, target: files, or "-" for the standard streams. text: name of the column; None is `sentence`, `text` or the
    only one. A file .txt has a sentence on each line. Raises InputError, with file and line, for a sentence that cannot
    be scored.
    """
    prepare_processor()
    refuse_target(target, source=source)
    refuse_folder(target)
    if input_format == "auto" and source != "-" and table_ending(source) == ".txt":
        input_format = "lines"
    if input_format == "lines" and text is not None:
        raise InputError(f"--text-column {text}: a file with a sentence on each line has no columns; leave it out")
    request = PredictRequest(source, target, (), input_format, output_format)
    scorer = open_scorer(model, precision, device, settings.direction)
    resolved = scorer.resolve(settings)
    totals: list[SentenceScore] = []

    def answered(table: Table, written: Table) -> Table:
        scores = _scores_of(scorer, table, text or _text_column(table, request), resolved)
        totals.append(total_score(scores))
        return add_columns(written, {name: [_cell(each, name) for each in scores] for name in _COLUMNS})

    def check(table: Table) -> None:
        scorer.encode(table.texts(text or _text_column(table, request)), resolved, table.location)

    options: Any = {"check": check, "headerless": (_TEXT_COLUMNS[0],) if input_format == "lines" else ()}
    rows = advise_on_full_gpu(lambda: answer_tables(request, answered, **options), lambda: CPU_ADVICE)
    total = asdict(total_score(totals))
    chosen = {name: value for name, value in vars(resolved).items() if value is not None}
    return {"sentences": rows, **total, **chosen, "output": target, **({"text": None} if target == "-" else {})}


_COLUMNS: Final = tuple(
    field.name for field in fields(SentenceScore) if field.name not in ("characters", "words", "unknown")
)


def _scores_of(scorer: SentenceScorer, table: Table, column: str, settings: ScoreSettings) -> list[SentenceScore]:
    texts = table.texts(column)
    return sentence_scores(scorer, texts, settings, location=table.location, progress="sentences scored")


def _text_column(table: Table, request: PredictRequest) -> str:
    """Return the name of the column of sentences. Raises InputError where it cannot be known."""
    names = [name for name in _TEXT_COLUMNS if name in table.columns]
    if not names:
        expected = {"columns": "'sentence' or 'text'", "unit": "sentence"}
        refuse_guessed_header(table, request.source, request.input_format, **expected)
    if not names and len(table.columns) != 1:
        raise InputError(
            f"{table.source}: expected a column 'sentence' or 'text', got {', '.join(map(shown, table.available))}; "
            "name the column with --text-column"
        )
    return (names or table.columns)[0]


def _cell(score: SentenceScore, name: str) -> object:
    value = getattr(score, name)
    return round(value, _DIGITS) if isinstance(value, float) else value
