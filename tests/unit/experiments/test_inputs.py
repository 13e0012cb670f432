"""Refused: a page whose corpus is not that of the records, a foreign folder, and a foreign page."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bertwright.cli import main
from bertwright.errors import InputError
from bertwright.experiments.corpora import CorpusFacts
from bertwright.experiments.inputs import refuse_foreign_files, refuse_other_corpus, refuse_other_pairs
from bertwright.experiments.jobs import PairsJob
from bertwright.experiments.spec import Experiment
from bertwright.registry import find
from bertwright.scoring.kept_scores import KeptScores
from bertwright.scoring.pairs import read_paradigms
from tests.support.blimp import UIDS, made_up_pairs, write_blimp, write_lines

TABLE5 = find("bertwright.experiments.tables", Experiment)["table5"]


def plan(out: Path, name: str, fingerprint: str) -> Any:
    """Return a plan with one pre-training, in a folder of that name, on a corpus with that fingerprint."""
    corpus = Path("wiki")
    model = SimpleNamespace(folder=out / "pretrained" / name, corpus=corpus, is_trained=True)
    corpora = SimpleNamespace(
        folders={("wordpiece", "documents"): corpus}, facts={corpus: CorpusFacts("wiki", fingerprint, 9, 1, 5)}
    )
    return SimpleNamespace(out=out, all_models=[model], corpora=corpora)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A folder with the record of one pre-training on the corpus aaaa."""
    folder = tmp_path / "pretrained" / "bert-2x128-seed0-1111"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"data": {"corpus": "aaaa"}}))
    return tmp_path


def test_pages_and_plans_need_a_name_and_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--page"], ["--plan"], ["--seeds", "3"]):
        assert main(["paper", *arguments, "--out", str(tmp_path / "none")]) == 2
        assert "paper: expected the name of an experiment" in capsys.readouterr().err
    assert main(["paper", "using", "--page", "--out", str(tmp_path / "none")]) == 2
    assert "holds no part of an experiment" in capsys.readouterr().err


def test_a_page_of_another_corpus_is_refused(out: Path) -> None:
    refuse_other_corpus(plan(out, "bert-2x128-seed0-1111", "aaaa"))
    with pytest.raises(InputError, match=r"the corpus wiki begins with bbbb, that of the runs in .* with aaaa;"):
        refuse_other_corpus(plan(out, "bert-2x128-seed0-2222", "bbbb"))


def test_a_page_whose_models_are_not_computed_yet_is_not_refused(out: Path) -> None:
    refuse_other_corpus(plan(out, "bert-2x128-seed1-3333", "aaaa"))  # another seed on the same corpus
    refuse_other_corpus(plan(out, "bert-8x128-seed0-4444", "bbbb"))  # no run has this size


def test_scores_of_other_minimal_pairs_are_refused(tmp_path: Path) -> None:
    pairs = write_blimp(tmp_path / "blimp")
    model: Any = SimpleNamespace(folder=tmp_path / "bert-2x128-seed0-1111")
    job = PairsJob(model, pairs)
    plan: Any = SimpleNamespace(all_jobs=[job], blimp=pairs)
    refuse_other_pairs(plan)  # no scores yet
    kept = KeptScores(job.scores, {"weights": "aaaa"})
    for paradigm in read_paradigms(pairs):
        kept.write(paradigm, np.zeros((4, 2)))
    fractions = {"accuracy": 0.5, "phenomena_accuracy": 0.5, "phenomena": {}}
    kept.write_metrics({**fractions, "pairs": 20, "precision": "fp32", "paradigms": {uid: {} for uid in UIDS}})
    refuse_other_pairs(plan)
    write_lines(pairs / "transitive.jsonl", made_up_pairs("transitive", count=3))
    with pytest.raises(InputError, match=r"blimp: expected the pairs of which .*minimal-pairs/blimp has scores"):
        refuse_other_pairs(plan)
    plan.blimp = None
    refuse_other_pairs(plan)


def test_a_folder_that_no_experiment_made_is_refused(tmp_path: Path) -> None:
    refuse_foreign_files(TABLE5, tmp_path / "absent")
    refuse_foreign_files(TABLE5, tmp_path)
    (tmp_path / "results").mkdir()
    with pytest.raises(InputError, match="or the folder of an experiment, and it holds other files"):
        refuse_foreign_files(TABLE5, tmp_path)
    (tmp_path / "locks").mkdir()
    refuse_foreign_files(TABLE5, tmp_path)


def test_a_page_of_a_person_is_not_replaced(tmp_path: Path) -> None:
    page = tmp_path / "results" / "table5.md"
    page.parent.mkdir()
    (tmp_path / "tuned").mkdir()
    (page.parent / "table5-claims.png").touch()  # of a run that was stopped before its page
    refuse_foreign_files(TABLE5, tmp_path)
    page.write_text("# My notes\n")
    with pytest.raises(InputError, match=r"table5\.md: does not begin with the title of this experiment"):
        refuse_foreign_files(TABLE5, tmp_path)
    page.write_text(f"# {TABLE5.title}\n\nText.\n")
    (tmp_path / "tuned").rmdir()
    refuse_foreign_files(TABLE5, tmp_path)
