"""plan → notes on its rows and corpora, from which a page can be written without them, and a check of its corpora."""

from bertwright.errors import InputError
from bertwright.experiments.corpora import note_corpora
from bertwright.experiments.data import note_subset
from bertwright.experiments.jobs import PretrainedModel, run_record, system_and_size
from bertwright.experiments.plan import ExperimentPlan


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


def _recorded_corpora(model: PretrainedModel) -> set[str]:
    """Return the fingerprints of the corpora of all runs with the system and size of a model, in its folder."""
    name = system_and_size(model.folder.name)
    records = [run_record(folder) for folder in model.folder.parent.glob(f"{name}-seed*")]
    return {str(record["data"]["corpus"]) for record in records if record}
