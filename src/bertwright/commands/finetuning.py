"""The commands finetune, evaluate, predict, submission and score squad: encoder → task → prediction."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional

from bertwright.commands import CommandResult
from bertwright.commands.arguments import (
    BadRowsOption,
    DeviceOption,
    DirectionOption,
    ExplainBaselineOption,
    ExplainOption,
    FirstTokenOption,
    LabelColumn,
    LabelledFormat,
    MaskingOption,
    PrecisionOption,
    Repeatable,
    ShardingOption,
    TextColumns,
    TrackOption,
    VocabularyFolder,
)
from bertwright.commands.options import SettingsOptions
from bertwright.commands.scoring import evaluate_blimp_command
from bertwright.console import say
from bertwright.errors import InputError
from bertwright.finetuning.settings import FINETUNE_RECIPES, FinetuneSettings
from bertwright.pretraining.settings import HELD_OUT_LENGTH, HELD_OUT_ROWS
from bertwright.serving.settings import AnswerPrecision, ExplainSettings
from bertwright.training.settings import Device

if TYPE_CHECKING:
    from bertwright.serving.predictor import Predictor
    from bertwright.tasks.spec import TaskSpec


def finetune_command(
    task: Positional[str],
    /,
    *,
    model: str,
    data: Path,
    out: Path,
    text_column: TextColumns = (),
    label_column: LabelColumn = None,
    input_format: LabelledFormat = "auto",
    on_error: BadRowsOption = "stop",
    recipe: Literal["paper"] | None = None,
    grid: str | None = None,
    search: int | None = None,
    search_minutes: float | None = None,
    resume: bool = False,
    settings: Annotated[Mapping[str, Any], SettingsOptions(FinetuneSettings, FINETUNE_RECIPES)],
    class_weights: Literal["none", "balanced"] = "none",
    long: Literal["truncate", "head-tail", "windows"] = "truncate",
    task_setting: Repeatable = (),
    tokenizer: VocabularyFolder = None,
    allow_other_numerics: bool = False,
    sharding: ShardingOption = "ddp",
    track: TrackOption = (),
) -> CommandResult:
    """Fine-tune a model on a labelled table; the epoch with the best validation metric is kept.

    Args:
        task: Task: {tasks}. Any table can be read by classify, multilabel and regress.
        model: MODEL: a model folder, a run folder, small-wiki, or random:SIZE (with --tokenizer).
        data: Folder with train and dev files, or one file, of which a tenth is used for validation. For embed also a
            folder in the layout of BEIR, or a corpus.
        out: Run folder, or a URL such as s3://bucket/tuned: models and checkpoints are then uploaded while it trains.
        recipe: paper: 3 epochs, batches of 32, learning rate 3e-5, as for BERT base and large. Other options override
            it. Default: values chosen by the number of rows and the width of the model.
        grid: Search over settings: paper (batches of 16 and 32, three learning rates, 2 to 4 epochs), or for example
            "batch-size=16,32 learning-rate=1e-3,3e-4". Every combination is trained with every seed.
        search: Number of trials of a search over those of learning rate, batch size, epochs, warm-up, weight decay and
            layer decay that are not given; the first trial has the defaults. Bad trials end early. Needs the extra
            optuna.
        search_minutes: Minutes of training after which the search ends, with or without --search.
        resume: Continue the run in --out.
        class_weights: With balanced, rare labels weigh more in the loss, so that all labels weigh the same.
        long: Texts longer than --max-length lose their end (truncate) or their middle (head-tail), or are cut into
            windows whose outputs are averaged (windows).
        task_setting: NAME=VALUE: a setting of this kind of task. ner and pos have scheme and context; embed has layout,
            temperature, symmetric, widths, mine, pooling, query_prompt and others.
        allow_other_numerics: Resume on another kind of processor or torch, or with another --device or
            --activation-checkpointing. Results then differ in their last bits.
    """
    from bertwright.finetuning.grid import parse_grid, search_grid
    from bertwright.finetuning.run import TuneRequest, tune
    from bertwright.finetuning.trials import TrialBudget, search_by_trials
    from bertwright.reports.report import with_pages
    from bertwright.tasks.embedding.task import default_length
    from bertwright.tasks.spec import get_spec, with_reading, with_settings
    from bertwright.training.distributed import init_distributed, is_restart
    from bertwright.training.run_files import run_record
    from bertwright.training.tracked_run import track_with

    spec = with_settings(get_spec(task), task_setting)
    spec = with_reading(spec, input_format=input_format, on_error=on_error)
    spec = _with_table_options(spec, text=text_column, label=label_column, class_weights=class_weights, long=long)
    values = FINETUNE_RECIPES[recipe].model_dump(exclude_unset=True) if recipe else {}
    noted = run_record(out).get("settings", {}).get("max_length") if resume or is_restart() else None
    length = {} if "max_length" in settings else {"max_length": noted or default_length(spec, model)}
    chosen = FinetuneSettings.model_validate({**length, **values, **settings})
    with track_with(track), init_distributed(chosen.device, sharding=sharding) as ranks:
        how: Any = {"resume": resume or is_restart(), "allow_other_numerics": allow_other_numerics}
        request = TuneRequest(model=model, data=data, out=out, tokenizer=tokenizer, **how)
        budget = TrialBudget(search, search_minutes) if search is not None or search_minutes is not None else None
        if grid is None and budget is None:
            result, _ = tune(chosen, spec, request, printed=set(), ranks=ranks, sharding=sharding)
        elif ranks.world_size > 1:
            raise InputError(
                "--grid and --search: one process trains all settings in turn; start the command without torchrun"
            )
        elif budget is None:
            result = search_grid(chosen, spec, parse_grid(grid or "", chosen), request)
        elif grid is not None:
            raise InputError("--grid and --search: both choose the settings; leave out one of them")
        else:
            result = search_by_trials(chosen, spec, budget, request)
    return with_pages(result, out)


def _with_table_options(
    spec: "TaskSpec", *, text: tuple[str, ...], label: str | None, class_weights: Any, long: Any
) -> "TaskSpec":
    """Return the task with the columns of its table and its options; InputError where the task has none of them."""
    from bertwright.tasks.classification.spec import ClassificationTask, with_options
    from bertwright.tasks.kinds import with_named_columns

    spec = with_named_columns(spec, text=text, label=label)
    if isinstance(spec, ClassificationTask):
        return with_options(spec, class_weights=class_weights, long=long)
    if (class_weights, long) != ("none", "truncate"):
        raise InputError(
            f"--class-weights and --long: expected a task of sentences or pairs, got {spec.name}; leave them out"
        )
    return spec


def evaluate_command(
    task: Positional[str | None] = None,
    /,
    *,
    model: str,
    data: Path | None = None,
    corpus: Path | None = None,
    rows: int = HELD_OUT_ROWS,
    length: int = HELD_OUT_LENGTH,
    text_column: TextColumns = (),
    label_column: LabelColumn = None,
    input_format: LabelledFormat = "auto",
    on_error: BadRowsOption = "stop",
    task_setting: Repeatable = (),
    width: int | None = None,
    errors: Path | None = None,
    calibrate: bool = False,
    pairs: Path | None = None,
    masking: MaskingOption = None,
    first_token: FirstTokenOption = None,
    direction: DirectionOption = None,
    out: Path | None = None,
    precision: AnswerPrecision = "auto",
    device: DeviceOption = "cpu",
) -> CommandResult:
    """Compute the metrics of a fine-tuned model on a task, of a pre-trained one on a corpus (TASK = pretraining) or on
    minimal pairs (TASK = blimp), or of a model's sentence vectors (TASK = embed).

    Args:
        task: Task: {tasks}; or pretraining, or blimp. Default: the task that the model folder notes.
        model: MODEL: a model folder or a run folder; for embed also a folder of export static.
        data: For a task: folder with dev files, or one file; of the file that the model was trained on, the rows that
            were kept for validation. For embed: a table of pairs as for training
            (with a score of their similarity or without), a folder of tables, a folder in BEIR's layout for a search,
            or a corpus. For blimp: a folder with a file .jsonl for each paradigm, or one file of all.
        corpus: For pretraining: validation corpus.
        rows: For pretraining: number of rows, from the first on.
        length: For pretraining: tokens per row.
        task_setting: NAME=VALUE, instead of the setting that the model was fine-tuned with. For embed: layout and
            scores.
        width: For embed: number of first components of the vectors that are compared.
        errors: For a task: a table to write (tsv, csv, jsonl or parquet) with gold and predicted answers, the most
            confidently wrong first, then the most doubtful; for questions the lowest F1 first.
        calibrate: Fit a temperature for the probabilities on the data, and store it in the model folder. Give data that
            the model was not trained on.
        pairs: For blimp: JSON file of UID → list of the pairIDs that count.
        out: For blimp: folder that keeps the scores of each paradigm. The same command continues a stopped evaluation.
        precision: For a task and blimp: auto is bf16 where it is faster here, else fp32; int8 is faster and less exact.
    """
    task = _noted_task(model) if task is None else task
    has_rows = bool(corpus) or (rows, length) != (HELD_OUT_ROWS, HELD_OUT_LENGTH)
    has_tables = bool(text_column or label_column or task_setting) or (input_format, on_error) != ("auto", "stop")
    ways: Any = {"masking": masking, "first_token": first_token, "direction": direction}
    of_blimp: dict[str, Any] = {"pairs": pairs, "out": out, **ways}
    if task == "blimp":
        if has_rows or has_tables or width is not None or errors or calibrate:
            taken = "--data, --pairs, --masking, --first-token, --direction, --out, --precision and --device"
            raise InputError(f"evaluate blimp: takes {taken}; leave others out")
        return evaluate_blimp_command(model, data, **of_blimp, precision=precision, device=device)
    if any(of_blimp.values()):
        raise InputError(f"evaluate {task}: --pairs, --masking, --first-token, --direction and --out are for blimp")
    if task == "embed":
        if has_rows or errors or calibrate:
            raise InputError("evaluate embed: leave --corpus, --rows, --length, --errors and --calibrate out")
        reading: Any = {"text": text_column, "label": label_column, "input_format": input_format, "on_error": on_error}
        options: Any = {"settings": task_setting, "width": width, "precision": precision, "device": device}
        return _evaluate_vectors(model, data, **options, **reading)
    if width is not None:
        raise InputError(f"evaluate {task}: --width is for evaluate embed; leave it out")
    if task == "pretraining":
        measured: Any = {"has_tables": bool(data or has_tables), "has_labels": bool(errors or calibrate)}
        measured |= {"rows": rows, "length": length, "precision": precision, "device": device}
        return _evaluate_pretraining(model, corpus, **measured)
    from bertwright.tasks.spec import get_spec, with_reading, with_settings

    spec = with_reading(with_settings(get_spec(task), task_setting), input_format=input_format, on_error=on_error)
    if data is None:
        raise InputError(f"evaluate {task}: expected --data PATH, a folder with dev files or one file")
    if has_rows:
        raise InputError(f"evaluate {task}: --corpus, --rows and --length are for evaluate pretraining; leave them out")
    options = {"text": text_column, "label": label_column, "calibrate": calibrate}
    options |= {"errors": None if errors is None else str(errors), "precision": precision, "device": device}
    return _evaluate_task(spec, model=model, data=data, **options)


def _noted_task(model: str) -> str:
    """Return the name of the task that the model folder notes; InputError where it notes none."""
    from bertwright.finetuning.evaluate import task_name_of

    return task_name_of(model)


def _evaluate_task(spec: "TaskSpec", *, model: str, calibrate: bool, **options: Any) -> CommandResult:
    """Return the metrics of a task, and print where probabilities should be calibrated."""
    from bertwright.finetuning.advice import calibration_lines
    from bertwright.finetuning.evaluate import evaluate_task

    metrics = evaluate_task(spec, model=model, calibrate=calibrate, **options)
    for line in [] if calibrate else calibration_lines(metrics, model=model):
        say(line)
    return metrics


def _evaluate_vectors(model: str, data: Path | None, **options: Any) -> CommandResult:
    """Return the metrics of the sentence vectors of a model; options: those of `evaluate_embed`."""
    if data is None:
        raise InputError("evaluate embed: expected --data PATH, tables of pairs, a folder of BEIR or a corpus")
    from bertwright.finetuning.kept_rows import kept_pairs, warn_of_judgements
    from bertwright.search.evaluate import evaluate_embed

    warn_of_judgements(model, data)
    return evaluate_embed(model, data, part_of=partial(kept_pairs, model, data), **options)


def _evaluate_pretraining(
    model: str,
    corpus: Path | None,
    *,
    has_tables: bool,
    has_labels: bool,
    rows: int,
    length: int,
    precision: AnswerPrecision,
    device: Device,
) -> CommandResult:
    """Return validation metrics of pre-training; InputError where options of tables or of labels were typed."""
    from bertwright.pretraining.evaluate import evaluate_pretraining

    if corpus is None:
        raise InputError("evaluate pretraining: expected --corpus FOLDER, the validation corpus")
    if has_labels:
        raise InputError("evaluate pretraining: has no labels; leave --errors and --calibrate out")
    if has_tables:
        raise InputError(
            "evaluate pretraining: reads a corpus; leave --data, --text-column, --label-column, --input-format, "
            "--on-error and --task-setting out"
        )
    if precision not in ("auto", "fp32"):
        raise InputError(f"--precision {precision}: evaluate pretraining computes in fp32; leave the option out")
    return evaluate_pretraining(model, corpus, rows=rows, length=length, device=device)


def predict_command(
    *,
    model: str,
    input: str = "-",
    output: str = "-",
    text_column: Repeatable = (),
    raw: bool = False,
    input_format: Literal["auto", "csv", "tsv", "jsonl", "parquet", "lines"] = "auto",
    output_format: Literal["auto", "csv", "tsv", "jsonl", "parquet"] = "auto",
    explain: ExplainOption = None,
    explain_baseline: ExplainBaselineOption = "auto",
    precision: PrecisionOption = "auto",
    device: DeviceOption = "cpu",
) -> CommandResult:
    """Predict for every row of a file: its fields are kept, label and probabilities (or score, or tags) are added.

    For questions the output is a folder with predictions.json, nbest.json and null_odds.json, or a file of JSON lines.

    Args:
        model: MODEL: a fine-tuned model folder or run folder.
        input: Table as tsv, csv, JSON lines or Parquet, words in CoNLL's columns, or questions in SQuAD's layout; - for
            standard input.
        output: File to write, whose ending names the format (for questions a folder, or a file *.jsonl); - for
            standard output in the format of the input.
        text_column: Column of the text, where its name differs from the one in training; twice for pairs.
        raw: The same as --input-format lines.
        input_format: Format of standard input, or of a file without a known ending. With lines, each line is one text,
            and the output is a tsv table, or JSON lines of entities with their positions.
        output_format: Format of standard output, or of a file without a known ending.
    """
    from bertwright.finetuning.evaluate import predict_file

    formats: Any = {"input_format": input_format, "output_format": output_format}
    if explain is None and explain_baseline != "auto":
        raise InputError("--explain-baseline: is for --explain gradients or occlusion; add it, or leave this out")
    if explain is not None:
        formats["explain"] = _explaining(model, ExplainSettings(explain, explain_baseline), precision)
    return predict_file(model, input, output, text=text_column, raw=raw, precision=precision, device=device, **formats)


def _explaining(
    model: str, settings: ExplainSettings, precision: AnswerPrecision
) -> Callable[[Sequence[object]], list[object]]:
    """Return a function from inputs to explanations as JSON values; the first call opens the model."""

    @cache
    def opened() -> "Predictor":
        from bertwright.serving.predictor import load

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the command opened the same model and printed them
            return load(model, precision=precision)

    def explained(inputs: Sequence[object]) -> list[object]:
        from bertwright.serving.explanations import explanation_json

        options: Any = {"method": settings.method, "baseline": settings.baseline}
        return [explanation_json(each) for each in opened().explain(list(inputs), **options)]

    return explained


def submission_command(
    *, model: Repeatable, data: Path, out: Path, input_format: LabelledFormat = "auto"
) -> CommandResult:
    """Predict for all of GLUE's test files, and write the zip file that its server scores, AX and WNLI included.

    Args:
        model: TASK=MODEL, once for each of cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte and, if there is one, wnli.
        data: GLUE's folder, with CoLA/test.tsv, …, MNLI/test_matched.tsv, …, diagnostic/diagnostic.tsv.
        out: Zip file to write.
    """
    from bertwright.finetuning.glue_submission import write_submission

    models: dict[str, str] = {}
    for text in model:
        task, sign, path = text.partition("=")
        if not sign or not path or task in models:
            raise InputError(f"--model {text}: expected TASK=MODEL, once for each task")
        models[task] = path
    return write_submission(models, data, out, input_format=input_format)


def score_squad_command(
    *,
    gold: Path,
    predictions: Path,
    null_odds: Path | None = None,
    null_threshold: float | None = None,
    allow_missing: bool = False,
) -> CommandResult:
    """Compute exact match and F1 in percent, as the official scripts of SQuAD 1.1 and 2.0.

    Args:
        gold: Questions with their answers, in SQuAD's layout; the version is recognised by the content.
        predictions: JSON object from id to text; "" stands for no answer.
        null_odds: For 2.0, a JSON object from id to a number that rises with the probability of no answer; the best
            thresholds are then reported too.
        null_threshold: Remove answers whose null odds are above this number.
        allow_missing: Count questions without a prediction as wrong, instead of refusing the file.
    """
    from bertwright.finetuning.squad_files import score_files

    return score_files(gold, predictions, null_odds=null_odds, threshold=null_threshold, allow_missing=allow_missing)
