"""Every experiment at every scale: consistent, with the same tokens for all arms, and listed without torch."""

import subprocess
import sys
from dataclasses import replace

import pytest

from bertwright.experiments.data import PAPER_TASKS
from bertwright.experiments.jobs import finetuning_settings, pretraining_settings
from bertwright.experiments.plan import metric_applies
from bertwright.experiments.scales import SCALES
from bertwright.experiments.scores import _METRICS
from bertwright.experiments.spec import Arm, Column, Experiment, Scale
from bertwright.experiments.tables.arms import GPT1
from bertwright.finetuning.schedule import scheduled
from bertwright.model.system import system_config
from bertwright.pretraining.settings import PretrainSettings
from bertwright.registry import find
from bertwright.tasks.classification.spec import ClassificationTask
from bertwright.tasks.spec import get_spec

PACKAGE = "bertwright.experiments.tables"
EXPERIMENTS = find(PACKAGE, Experiment)


@pytest.fixture(params=sorted(EXPERIMENTS))
def experiment(request: pytest.FixtureRequest) -> Experiment:
    return EXPERIMENTS[request.param]


@pytest.fixture(params=sorted(SCALES))
def scale(request: pytest.FixtureRequest) -> Scale:
    return SCALES[request.param]


def models_of(scale: Scale, arm: Arm) -> list[PretrainSettings]:
    return [pretraining_settings(scale, changes, seed=1) for changes in arm.models]


def tokens(settings: PretrainSettings) -> float:
    assert settings.steps
    return sum(phase.share * phase.length for phase in settings.phases) * settings.steps * settings.batch_size


def test_all_of_the_papers_tables_are_there() -> None:
    tables = {f"table{number}" for number in range(1, 9)}
    others = {
        "figure5",
        "gpt-table5",
        "start",
        "head-removal",
        "families",
        "masked-share",
        "document-order",
        "batch-size",
        "length-cost",
        "learning-curve",
        "sizes",
        "using",
    }
    assert set(EXPERIMENTS) == tables | others


def test_claims_and_pictures_speak_of_what_is_there(experiment: Experiment, scale: Scale) -> None:
    arms = experiment.arms(scale)
    names, columns = [arm.name for arm in arms], [column.name for column in experiment.columns]
    assert len(set(names)) == len(names)
    assert len(set(columns)) == len(columns)
    assert all("," not in name for name in names)  # --arms parts them so
    assert experiment.claims
    for claim in experiment.claims:
        assert {claim.arm, claim.against} <= set(names)
        assert claim.arm != claim.against
        assert experiment.columns_of(claim)
        assert set(experiment.columns_of(claim)) <= set(columns)
    assert all((arm.x is not None) == (experiment.axis is not None) or experiment.axis is None for arm in arms)


def test_no_claim_is_about_a_metric_that_an_arm_cannot_have(experiment: Experiment) -> None:
    arms = {arm.name: arm for arm in experiment.arms(SCALES["tiny"])}
    columns = {column.name: column for column in experiment.columns}
    for claim in experiment.claims:
        for column in experiment.columns_of(claim):
            assert all(metric_applies(arms[name], columns[column]) for name in claim.arms)


def test_the_papers_rows_are_as_long_as_their_head(experiment: Experiment) -> None:
    if experiment.published:
        assert experiment.published.rows
        assert {len(row) for row in experiment.published.rows} == {len(experiment.published.head) + 1}


def test_columns_are_metrics_of_their_task(experiment: Experiment) -> None:
    for column in experiment.columns:
        if column.task is None:
            assert column.metric in _METRICS
            continue
        task = PAPER_TASKS[column.task]
        spec = get_spec(task.task)
        if isinstance(spec, ClassificationTask):
            metric = column.metric.rpartition(".")[2]
            assert metric in spec.metrics
            assert (column.metric.partition(".")[0] in spec.dev) == (len(spec.dev) > 1)


def test_settings_are_valid_and_all_arms_have_the_same_tokens(experiment: Experiment, scale: Scale) -> None:
    models = [settings for arm in experiment.arms(scale) if not arm.lengths for settings in models_of(scale, arm)]
    base = tokens(pretraining_settings(scale, {}, seed=0))
    for settings in models:
        assert settings.minutes is None
        assert tokens(settings) == pytest.approx(base, rel=0.03 if scale.name != "smoke" else 0.5)


def test_models_on_the_way_are_kept(experiment: Experiment, scale: Scale) -> None:
    for arm in experiment.arms(scale):
        if arm.fraction < 1:
            (settings,) = models_of(scale, arm)
            assert arm.fraction in settings.snapshots


def test_fine_tuning_is_valid(experiment: Experiment, scale: Scale) -> None:
    assert {"epochs", "batch_size"} <= scale.finetuning.keys()  # no experiment relies on their defaults
    for arm in experiment.arms(scale):
        for column in experiment.columns:
            if column.task and not arm.baseline:
                spec = get_spec(PAPER_TASKS[column.task].task)
                settings = finetuning_settings(scale, column, arm.finetuning, spec, seed=3)
                assert (settings.first_seed, settings.seeds) == (3, 1)


def test_a_task_may_have_settings_of_its_own_which_an_arm_and_a_column_beat() -> None:
    scale = replace(SCALES["tiny"], finetuning_of={"rte": {"epochs": 9, "batch_size": 8}})
    spec = get_spec("rte")
    with_settings, other = (Column(name="a", task=task, metric="accuracy") for task in ("rte", "sst2"))
    beaten = Column(name="b", task="rte", metric="accuracy", finetuning={"epochs": 2})
    settings = [finetuning_settings(scale, column, {}, spec, seed=0) for column in (with_settings, other, beaten)]
    assert [(one.epochs, one.batch_size) for one in settings] == [(9, 8), (4, 16), (2, 8)]
    assert finetuning_settings(scale, beaten, {"batch_size": 4}, spec, seed=0).batch_size == 4


@pytest.mark.parametrize("name", ["base", "paper"])
def test_the_papers_tasks_have_the_papers_settings(name: str) -> None:
    """§4.1 to §4.4: epochs, rows of a step and rate (None: the default, which is one of GLUE's four)."""
    wanted = {"sst2": (3, 32, None), "squad1": (3, 32, 5e-5), "squad2": (2, 48, 5e-5), "swag": (3, 16, 2e-5)}
    for task, expected in wanted.items():
        column = Column(name="a", task=task, metric="accuracy")
        settings = finetuning_settings(SCALES[name], column, {}, get_spec(task), seed=0)
        assert (settings.epochs, settings.batch_size, settings.learning_rate) == expected
        other = finetuning_settings(SCALES[name], column, GPT1.finetuning, get_spec(task), seed=0)
        assert scheduled(other, system_config("gpt", "base", 40_000), rows=1000).learning_rate == 6.25e-5


def test_the_papers_scale_has_the_papers_figures() -> None:
    """§A.2: 256 rows, a million steps, 128 tokens for 90 % and 512 for the rest, a rate of 1e-4 over 10,000 steps."""
    settings = pretraining_settings(SCALES["paper"], {}, seed=0)
    assert (settings.size, settings.steps, settings.batch_size) == ("base", 1_000_000, 256)
    assert [(phase.length, phase.share) for phase in settings.phases] == [(128, 0.9), (512, 0.1)]
    assert (settings.optimizer.learning_rate, settings.optimizer.warmup) == (1e-4, 0.01)
    assert (settings.examples.masking.share, settings.examples.masking.mask) == (0.15, 0.8)


def test_experiments_are_listed_without_torch() -> None:
    program = f"""
import sys
sys.modules["torch"] = None
from bertwright.experiments.scales import SCALES
from bertwright.experiments.spec import Experiment
from bertwright.registry import find
for experiment in find("{PACKAGE}", Experiment).values():
    for scale in SCALES.values():
        assert experiment.arms(scale)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)
