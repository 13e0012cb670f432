"""The commands finetune, evaluate and predict: encoder → task → prediction."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from tyro.conf import Positional

from bertwright.errors import InputError

Result = Mapping[str, Any]
Way = Literal["embeddings", "second-to-last", "last", "sum-last-four", "concat-last-four", "sum-all", "elmo"]
Answering = Literal["auto", "fp32", "bf16", "int8"]
Several = Annotated[tuple[str, ...], tyro.conf.UseAppendAction]


def finetune(
    task: Positional[str],
    /,
    *,
    model: str,
    data: Path,
    out: Path,
    epochs: int = 3,
    batch_size: int = 32,
    learning_rate: float | None = None,
    seeds: int = 1,
    grid: str | None = None,
    head_learning_rate: float | None = None,
    layer_decay: float = 1.0,
    warmup: float | None = None,
    weight_decay: float = 0.01,
    no_bias_correction: bool = False,
    lm_weight: float | None = None,
    bilstm: int | None = None,
    new_layers: int = 0,
    frozen_layers: int = 0,
    features: Way | None = None,
    lstm_width: int = 768,
    max_length: int | None = None,
    text_column: Several = (),
    label_column: str | None = None,
    task_setting: Several = (),
    class_weights: Literal["none", "balanced"] = "none",
    long: Literal["truncate", "head-tail", "windows"] = "truncate",
    tokenizer: Path | None = None,
    first_seed: int = 0,
    precision: Literal["auto", "fp32", "bf16"] = "auto",
    activation_checkpointing: bool = False,
    threads: int | None = None,
    device: Literal["cpu", "cuda"] = "cpu",
    resume: bool = False,
    allow_other_numerics: bool = False,
    sharding: Literal["ddp", "fsdp2"] = "ddp",
) -> Result:
    """Fine-tune a model on a labelled table; the best epoch on dev is kept.

    Args:
        task: sst2, cola, mrpc, qqp, stsb, mnli, qnli, rte, wnli; squad1, squad2; swag; ner, pos; or classify,
            multilabel, regress for any table.
        model: MODEL: a model folder, a run folder, small-wiki, or random:SIZE (with --tokenizer).
        data: a folder with train and dev files, or one file (a tenth of it is then kept for measuring).
        out: the run folder.
        epochs: over the training data.
        batch_size: examples per step.
        learning_rate: its peak (default: 3e-5 from 768 wide on, 6.25e-5 for a GPT-1, 3e-4 below, 1e-3 with --features).
        seeds: how many runs, each with its own head and order; their mean and deviation are reported.
        grid: search over settings: paper (batches of 16 and 32, three rates, 2 to 4 epochs), or for example
            "batch-size=16,32 learning-rate=1e-3,3e-4"; every combination with every seed, one table at the end.
        head_learning_rate: another rate for the new layer.
        layer_decay: each layer's rate as a share of the one above it.
        warmup: share of the steps over which the rate rises (default: 0.1; 0.002 for a GPT-1).
        weight_decay: decoupled; not on LayerNorm and biases.
        no_bias_correction: Adam as the original code has it.
        lm_weight: of the next-token loss on the task's own texts, for models that attend to the left (default: 0.5 for
            a GPT-1, else 0).
        bilstm: width of a new BiLSTM between the model and the head, half in each direction.
        new_layers: top layers, and the pooler, that begin anew (for small data).
        frozen_layers: layers from below, the embeddings with them, that do not learn.
        features: the feature-based way: no layer learns, and a BiLSTM of two layers reads these states of the encoder,
            computed once.
        lstm_width: of that BiLSTM, half in each direction.
        max_length: tokens per example (default: the task's own, 128 for sentences).
        text_column: the column of the text; twice for pairs.
        label_column: the column of the label or number.
        task_setting: NAME=VALUE, a setting that this kind of task has; ner and pos: scheme, context.
        class_weights: balanced: a rare label weighs more in the loss, so that all labels weigh the same.
        long: texts over the maximal length lose their end (truncate) or middle (head-tail), or become several windows
            whose outputs are averaged (windows).
        tokenizer: the tokenizer or model folder whose vocabulary random:SIZE takes.
        first_seed: the first seed.
        precision: of the matrix products; auto measures the machine.
        activation_checkpointing: compute layers anew in backward: less memory, more time, the same numbers.
        threads: default: one per core.
        device: what computes: the processors (cpu), or a GPU for each process (cuda).
        resume: continue the run in --out.
        allow_other_numerics: resume on another kind of processor or torch, or with another --device or
            --activation-checkpointing, where the bits differ; the run goes on with those from then on.
        sharding: of the processes that torchrun starts, each holds the model (ddp) or a share of it (fsdp2).
    """
    from bertwright.finetuning.run import finetune as run_finetuning
    from bertwright.finetuning.search import parse_grid, search
    from bertwright.finetuning.settings import FinetuneSettings
    from bertwright.reports.report import with_pages
    from bertwright.tasks.classification.spec import ClassificationTask, with_columns, with_options
    from bertwright.tasks.spec import get_spec, with_settings
    from bertwright.tasks.tagging.spec import TaggingTask, with_tag_columns
    from bertwright.training.distributed import init_distributed, is_restart

    chosen = with_settings(get_spec(task), task_setting)
    if isinstance(chosen, ClassificationTask):
        chosen = with_columns(chosen, text=text_column, label=label_column)
        chosen = with_options(chosen, class_weights=class_weights, long=long)
    elif (class_weights, long) != ("none", "truncate"):
        raise InputError(f"--class-weights and --long are for tasks of sentences and pairs; {task} is of another kind")
    elif isinstance(chosen, TaggingTask):
        chosen = with_tag_columns(chosen, text=text_column, label=label_column)
    elif text_column or label_column:
        raise InputError(f"--text-column and --label-column are for tables; {task} has none")
    settings = FinetuneSettings(
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        head_learning_rate=head_learning_rate,
        layer_decay=layer_decay,
        warmup=warmup,
        weight_decay=weight_decay,
        bias_correction=not no_bias_correction,
        lm_weight=lm_weight,
        bilstm=bilstm,
        new_layers=new_layers,
        frozen_layers=frozen_layers,
        features=features,
        lstm_width=lstm_width,
        max_length=chosen.max_length if max_length is None else max_length,
        seeds=seeds,
        first_seed=first_seed,
        precision=precision,
        activation_checkpointing=activation_checkpointing,
        threads=threads,
        device=device,
    )
    where: Any = {"model": model, "data": data, "out": out, "tokenizer": tokenizer}
    with init_distributed(device, sharding=sharding) as ranks:
        where |= {"resume": resume or is_restart(), "allow_other_numerics": allow_other_numerics}
        if grid is None:
            result = run_finetuning(settings, chosen, **where, ranks=ranks, sharding=sharding)
        elif ranks.world_size > 1:
            raise InputError("--grid: one process trains its combinations one after the other; leave torchrun out")
        else:
            result = search(settings, chosen, parse_grid(grid, settings), **where)
    return with_pages(result, out)


def evaluate(
    task: Positional[str],
    /,
    *,
    model: str,
    data: Path | None = None,
    corpus: Path | None = None,
    rows: int = 2048,
    length: int = 128,
    text_column: Several = (),
    label_column: str | None = None,
    task_setting: Several = (),
    precision: Answering = "auto",
    device: Literal["cpu", "cuda"] = "cpu",
) -> Result:
    """A fine-tuned model's metrics on a task, or the held-out figures of a pre-trained one (TASK = pretraining).

    Args:
        task: a task's name, or pretraining.
        model: MODEL: a model folder or a run folder.
        data: for a task: a folder with dev files, or one file.
        corpus: for pretraining: the held-out corpus.
        rows: for pretraining: how many rows, from the first on.
        length: for pretraining: tokens per row.
        text_column: the column of the text; twice for pairs.
        label_column: the column of the label or number.
        task_setting: NAME=VALUE, instead of what the model was fine-tuned with.
        precision: for a task: auto is bf16 where it is faster here, else fp32; int8 is faster and less exact.
        device: what computes: the processors (cpu), or a GPU (cuda).
    """
    from bertwright.finetuning.evaluate import evaluate_task
    from bertwright.pretraining.evaluate import evaluate_pretraining

    if task == "pretraining":
        if corpus is None:
            raise InputError("evaluate pretraining needs --corpus DIR, the held-out corpus")
        if precision not in ("auto", "fp32"):
            raise InputError(f"--precision {precision}: is for tasks; evaluate pretraining computes in fp32")
        return evaluate_pretraining(model, corpus, rows=rows, length=length, device=device)
    from bertwright.tasks.spec import get_spec, with_settings

    chosen = with_settings(get_spec(task), task_setting)
    if data is None:
        raise InputError(f"evaluate {task} needs --data PATH, a folder with dev files or one file")
    columns: Any = {"text": text_column, "label": label_column}
    return evaluate_task(chosen, model=model, data=data, **columns, precision=precision, device=device)


def predict(
    *,
    model: str,
    input: str = "-",
    output: str = "-",
    text_column: Several = (),
    raw: bool = False,
    input_format: Literal["auto", "csv", "tsv", "jsonl", "parquet", "lines"] = "auto",
    output_format: Literal["auto", "csv", "tsv", "jsonl", "parquet"] = "auto",
    precision: Answering = "auto",
    device: Literal["cpu", "cuda"] = "cpu",
) -> Result:
    """Answer every row of a file: order and fields are kept, label and probabilities (or score, or tags) are added.

    Questions are answered into a folder with predictions.json, nbest.json and null_odds.json, or line by line.

    Args:
        model: MODEL: a fine-tuned model folder or run folder.
        input: a tsv, csv, JSON-lines or Parquet file, words in CoNLL's columns, questions in SQuAD's layout, or - for
            standard input.
        output: the file to write, whose ending says the format (for questions a folder, or a file *.jsonl), or - for
            standard output in the input's format.
        text_column: the column of the text where it is called otherwise than in training; twice for pairs.
        raw: the same as --input-format lines.
        input_format: of standard input, or of a file whose name does not tell; lines: one text a line, which makes a
            tsv table, or JSON lines of entities with their places.
        output_format: of standard output, or of a file whose name does not tell.
        precision: auto is bf16 where it is faster here, else fp32; int8 is faster and less exact.
        device: what computes: the processors (cpu), or a GPU (cuda).
    """
    from bertwright.finetuning.evaluate import predict_file

    formats: Any = {"input_format": input_format, "output_format": output_format}
    return predict_file(model, input, output, text=text_column, raw=raw, precision=precision, device=device, **formats)


def submission(*, model: Several, data: Path, out: Path) -> Result:
    """Answer all of GLUE's test files: the zip that its server scores, AX and WNLI included.

    Args:
        model: TASK=MODEL, once for each of cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte and, if there is one, wnli.
        data: GLUE's folder, with CoLA/test.tsv, …, MNLI/test_matched.tsv, …, diagnostic/diagnostic.tsv.
        out: the zip file to write.
    """
    from bertwright.finetuning.glue_submission import write_submission

    named: dict[str, str] = {}
    for given in model:
        task, sign, place = given.partition("=")
        if not sign or not place or task in named:
            raise InputError(f"--model {given}: write TASK=MODEL, each task once")
        named[task] = place
    return write_submission(named, data, out)


def score_squad(
    *,
    gold: Path,
    predictions: Path,
    null_odds: Path | None = None,
    null_threshold: float | None = None,
    allow_missing: bool = False,
) -> Result:
    """Exact match and F1 in percent, as the official scripts of SQuAD 1.1 and 2.0 count them.

    Args:
        gold: the questions with their answers, in SQuAD's layout; which version it is its content tells.
        predictions: a JSON object: id to text, "" for no answer.
        null_odds: for 2.0, a JSON object: id to number, the higher the likelier there is no answer; adds the best
            thresholds.
        null_threshold: take back the answers whose null odds are higher.
        allow_missing: count questions without a prediction as wrong, instead of refusing the file.
    """
    from bertwright.tasks.question_answering.score import score_files

    return score_files(gold, predictions, null_odds=null_odds, threshold=null_threshold, allow_missing=allow_missing)
