"""plan → notes on its rows and corpora, with which a page needs neither; checks of its folder, corpora and pairs."""

import os
from pathlib import Path

from bertwright.errors import InputError
from bertwright.experiments.corpora import note_corpora
from bertwright.experiments.data import note_subset
from bertwright.experiments.jobs import PairsJob, PretrainedModel, system_and_size
from bertwright.experiments.page import page_path, title_line
from bertwright.experiments.plan import ExperimentPlan
from bertwright.experiments.spec import Experiment
from bertwright.scoring.kept_scores import keeps_scores, read_evaluation
from bertwright.scoring.pairs import pairs_digest, read_paradigms
from bertwright.training.run_files import run_record

_PARTS = ("corpora", "pretrained", "tuned")
"""Folders of the parts of experiments in their --out folder."""


def refuse_empty(out: Path) -> None:
    """Raise InputError where nothing of an experiment is in `out`, before a page without results is written there."""
    if not any((out / name).is_dir() for name in _PARTS):
        raise InputError(
            f"--page: {out} holds no part of an experiment; expected the --out folder of an earlier run; to compute "
            "one, leave --page out"
        )


def refuse_foreign_files(experiment: Experiment, out: Path) -> None:
    """Raise InputError for a folder that no experiment made, and where another page has the name of the experiment's.

    The folder would be filled, and the page replaced.
    """
    page = page_path(experiment, out)
    others = out.is_dir() and any(not path.name.startswith(".") for path in out.iterdir())
    is_own = _has_title(page, experiment) or any((out / name).is_dir() for name in (*_PARTS, "locks", "tasks"))
    if others and not is_own:
        raise InputError(
            f"--out {out}: expected a free name, an empty folder or the folder of an experiment, and it holds other "
            "files; name another folder"
        )
    if os.path.lexists(page) and not _has_title(page, experiment):
        raise InputError(
            f"{page}: does not begin with the title of this experiment, so that another program or a person made it; "
            "move it, or name another folder with --out"
        )


def _has_title(page: Path, experiment: Experiment) -> bool:
    """Return True for a page that this experiment wrote."""
    title = title_line(experiment).encode()
    if not page.is_file():
        return False
    with page.open("rb") as stream:
        return stream.readline().rstrip() == title


def write_notes(plan: ExperimentPlan) -> None:
    """Write the notes on the rows and the corpora of a plan into its folder, unless they are there."""
    note_corpora(plan.corpora, plan.out / "corpora")
    for data in plan.data.values():
        if data.subset.folder.is_dir():
            note_subset(data.source, data.subset, data.limits)


def refuse_other_corpus(plan: ExperimentPlan) -> None:
    """Raise InputError where a page would be empty because its corpus is not that of the records.

    Such a page would replace the page of the records.
    """
    for (_, order), folder in plan.corpora.folders.items():
        models = [model for model in plan.all_models if model.is_trained and model.corpus == folder]
        if order == "sentences" or any(run_record(model.folder) for model in models):
            continue
        facts = plan.corpora.facts[folder]
        recorded = {each for model in models for each in _recorded_corpora(model)} - {facts.fingerprint}
        if recorded:
            known = ", ".join(sorted(fingerprint[:12] for fingerprint in recorded))
            raise InputError(
                f"--page: the fingerprint of the corpus {facts.name} begins with {facts.fingerprint[:12]}, that of the "
                f"runs in {plan.out / 'pretrained'} with {known}; the page would have none of these runs. Name their "
                "corpus with --corpus, or leave --corpus out, or choose another --out"
            )


def refuse_other_pairs(plan: ExperimentPlan) -> None:
    """Raise InputError where models have scores of other minimal pairs than others, or than those of `--blimp`.

    A page would compare models by unequal pairs.
    """
    jobs = [job for job in plan.all_jobs if isinstance(job, PairsJob) and keeps_scores(job.scores)]
    evaluations = [(job.scores, evaluation.digests) for job in jobs if (evaluation := read_evaluation(job.scores))]
    if not evaluations:
        return
    first, digests = evaluations[0]
    for scores, others in evaluations:
        if others != digests:
            raise InputError(f"{first} and {scores}: have the scores of different pairs; remove one of them")
    if plan.blimp and plan.blimp.exists():
        pairs = {paradigm.uid: pairs_digest(paradigm) for paradigm in read_paradigms(plan.blimp)}
        if pairs != digests:
            raise InputError(
                f"--blimp {plan.blimp}: expected the pairs of which {first} has scores, got others; name the folder of "
                "those pairs, or choose another --out"
            )


def _recorded_corpora(model: PretrainedModel) -> set[str]:
    """Return the fingerprints of the corpora of all runs with the system and size of a model, in its folder."""
    name = system_and_size(model.folder.name)
    records = [run_record(folder) for folder in model.folder.parent.glob(f"{name}-seed*")]
    return {str(record["data"]["corpus"]) for record in records if record}
