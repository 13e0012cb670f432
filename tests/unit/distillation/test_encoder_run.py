"""A student that is pre-trained: its folder, how it resumes, and teachers that are refused."""

import json
import math
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

import bertwright as bw
from bertwright.corpus.build import build_corpus
from bertwright.distillation.encoder_run import distill_encoder
from bertwright.distillation.settings import DistillationSettings
from bertwright.errors import InputError
from bertwright.files import read_json, write_json
from bertwright.model.config import EncoderConfig
from bertwright.model.folder import open_model, save_model
from bertwright.model.system import System, system_config, system_of
from bertwright.objectives.masked_lm import PretrainingModel
from bertwright.pretraining.setup import Pretraining
from bertwright.text.wordpiece import Tokenizer, train_wordpiece
from tests.support.encoders import write_encoder
from tests.support.language_models import write_language_model
from tests.support.published_families import FAMILIES, publish

STEPS = 6
TYPED: dict[str, Any] = {"steps": STEPS, "batch_size": 4, "phases": [{"length": 32, "share": 1.0}], "threads": 1}
TYPED |= {"precision": "fp32", "evaluations": 1, "optimizer": {"learning_rate": 1e-3}}
LEARNS: dict[str, Any] = {"steps": 100, "optimizer": {"learning_rate": 1e-2}}
"""Settings with which a student learns at least how frequent each piece is."""


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory, own_tokenizer: Path) -> str:
    return write_encoder(tmp_path_factory.mktemp("encoder") / "teacher", own_tokenizer, layers=3, intermediate=192)


def distill(teacher: str, corpus: Path, out: Path, **options: Any) -> Any:
    soft = DistillationSettings.model_validate({"layers": 2, **options.pop("soft", {})})
    typed = {**TYPED, **options.pop("typed", {})}
    return distill_encoder(typed, soft, teacher=teacher, corpus={corpus: 1.0}, out=out, held_out=corpus, **options)


def test_a_stopped_run_resumes_to_the_same_bytes_and_refuses_another_teacher(
    encoder: str, own_corpus: Path, own_tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = distill(encoder, own_corpus, tmp_path / "whole")
    micro_batches = Pretraining.micro_batches

    def interrupted(self: Pretraining, phase: int, first: int, **options: Any) -> Any:
        if first == 3 * self.settings.batch_size:
            signal.raise_signal(signal.SIGINT)
        return micro_batches(self, phase, first, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Pretraining, "micro_batches", interrupted)
        assert distill(encoder, own_corpus, tmp_path / "cut")["stopped"]
    other = write_encoder(tmp_path / "other", own_tokenizer, layers=4, intermediate=192)
    with pytest.raises(InputError, match="was started with a teacher of"):
        distill(other, own_corpus, tmp_path / "cut", resume=True)
    distill(encoder, own_corpus, tmp_path / "cut", resume=True)
    for name in ("model.safetensors", "README.md", "config.json"):
        assert (tmp_path / "cut/model" / name).read_bytes() == (tmp_path / "whole/model" / name).read_bytes(), name
    again = distill(encoder, own_corpus, tmp_path / "whole", resume=True)
    assert again["distillation"] == whole["distillation"]
    assert "mlm_accuracy" in whole["text"]
    assert "of the teacher" in (tmp_path / "whole/model/README.md").read_text("utf-8")
    lines = [json.loads(line) for line in (tmp_path / "whole/metrics.jsonl").read_text().splitlines()]
    assert {"labels", "teacher", "relations"} <= {*lines[0]}
    assert open_model(str(tmp_path / "whole")).config.layers == 2
    assert bw.load(str(tmp_path / "whole")).vectors(["a text"]).shape == (1, 48)


def uniform_loss(tokenizer: Path) -> float:
    """Return the loss where each piece is equally probable."""
    return math.log(Tokenizer.load(tokenizer).vocab_size)


def pretrained_as(system: System, folder: Path, tokenizer: Path) -> str:
    """Write a model of three layers of random weights; return its folder."""
    vocab_size = Tokenizer.load(tokenizer).vocab_size
    config = system_config(system, "3x48x2", vocab_size, max_positions=64)
    assert isinstance(config, EncoderConfig)
    architecture = "ElectraForPreTraining" if system == "electra" else "BertForMaskedLM"
    model = PretrainingModel(config, second_sentence="none")
    save_model(folder, model, config=config, tokenizer=tokenizer, architecture=architecture)
    return str(folder)


@pytest.mark.parametrize("system", ["modernbert", "roberta", "albert"])
def test_a_teacher_of_another_family_has_a_student_of_it(
    system: System, own_corpus: Path, own_tokenizer: Path, tmp_path: Path
) -> None:
    teacher = pretrained_as(system, tmp_path / "teacher", own_tokenizer)
    distill(teacher, own_corpus, tmp_path / "out")
    student = open_model(str(tmp_path / "out"))
    assert (system_of(student.config), student.config.layers) == (system, 2)


def test_a_discriminator_is_refused(own_corpus: Path, own_tokenizer: Path, tmp_path: Path) -> None:
    teacher = pretrained_as("electra", tmp_path / "teacher", own_tokenizer)
    with pytest.raises(InputError, match=r"is an ELECTRA, .*expected an encoder that predicts masked pieces"):
        distill(teacher, own_corpus, tmp_path / "out")


def test_another_vocabulary_is_refused(encoder: str, own_text: Path, own_tokenizer: Path, tmp_path: Path) -> None:
    train_wordpiece([own_text.read_text("utf-8")], vocab_size=400).save(tmp_path / "smaller")
    build_corpus([own_text], tokenizer=tmp_path / "smaller", out=tmp_path / "corpus", workers=1)
    sizes = [Tokenizer.load(folder).vocab_size for folder in (own_tokenizer, tmp_path / "smaller")]
    with pytest.raises(InputError, match=f"a vocabulary of {sizes[0]} pieces, and .*corpus one of {sizes[1]}"):
        distill(encoder, tmp_path / "corpus", tmp_path / "out")
    pieces = (own_tokenizer / "vocab.txt").read_text("utf-8").splitlines()
    pieces[100], pieces[101] = pieces[101], pieces[100]
    (tmp_path / "swapped").mkdir()
    shutil.copyfile(own_tokenizer / "tokenizer_config.json", tmp_path / "swapped/tokenizer_config.json")
    (tmp_path / "swapped/vocab.txt").write_text("\n".join(pieces) + "\n", "utf-8")
    build_corpus([own_text], tokenizer=tmp_path / "swapped", out=tmp_path / "other", workers=1)
    with pytest.raises(InputError, match=f"its piece 100 is '{pieces[101]}', and in .*other it is '{pieces[100]}'"):
        distill(encoder, tmp_path / "other", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_teacher_with_a_task_or_without_a_head_is_refused(
    encoder: str, own_corpus: Path, own_tokenizer: Path, tmp_path: Path
) -> None:
    tuned = Path(write_encoder(tmp_path / "tuned", own_tokenizer))
    described = read_json(tuned / "config.json")
    write_json(tuned / "config.json", {**described, "bertwright": {"task": {"name": "sst2"}}})
    with pytest.raises(InputError, match="was fine-tuned for sst2; with --corpus expected a pre-trained encoder"):
        distill(str(tuned), own_corpus, tmp_path / "out")
    saved = open_model(encoder)
    assert saved.weights is not None
    bare = {name: tensor for name, tensor in saved.weights.items() if name.startswith("encoder.")}
    save_model(tmp_path / "bare", bare, config=saved.config, tokenizer=own_tokenizer, architecture="BertModel")
    with pytest.raises(InputError, match="has no masked-LM head, so it gives no soft labels; --soft-weight 0 learns"):
        distill(str(tmp_path / "bare"), own_corpus, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    result = distill(str(tmp_path / "bare"), own_corpus, tmp_path / "out", soft={"soft_weight": 0.0}, typed=LEARNS)
    assert result["distillation"]["share"] is None
    assert result["distillation"]["student"]["metrics"]["mlm_loss"] < uniform_loss(own_tokenizer)


def test_a_teacher_that_reads_in_one_direction_is_refused(
    own_corpus: Path, own_tokenizer: Path, own_text: Path, tmp_path: Path
) -> None:
    teacher = write_language_model(tmp_path / "left", "bert-left", own_tokenizer, own_text.read_text("utf-8"))
    with pytest.raises(InputError, match="left: expected an encoder whose tokens attend to both sides"):
        distill(teacher, own_corpus, tmp_path / "out")


def test_a_teacher_without_an_output_bias_has_a_head(own_corpus: Path, own_tokenizer: Path, tmp_path: Path) -> None:
    """A ModernBERT may have none (`decoder_bias` in config.json), and it fills [MASK] all the same."""
    (unbiased,) = [each for each in FAMILIES if each.entries.get("decoder_bias") is False]
    publish(tmp_path / "teacher", unbiased, "BertForMaskedLM", own_tokenizer)
    soft = {"soft_weight": 0.5}
    result = distill(str(tmp_path / "teacher"), own_corpus, tmp_path / "out", soft=soft, typed=LEARNS)["distillation"]
    assert result["teacher"]["metrics"]["mlm_loss"] < uniform_loss(own_tokenizer) + 1.0  # its weights are random
    assert result["student"]["metrics"]["mlm_loss"] < uniform_loss(own_tokenizer)


def test_a_student_of_random_weights_has_positions_activation_and_width_inside_of_the_teacher(
    own_corpus: Path, own_tokenizer: Path, tmp_path: Path
) -> None:
    """The rows of a phase are no longer than the teacher has positions, and --layers keeps a shape without a size."""
    changes: dict[str, Any] = {"max_positions": 40, "intermediate": 100, "activation": "gelu_tanh"}
    teacher = write_encoder(tmp_path / "teacher", own_tokenizer, layers=1, **changes)
    typed = {name: value for name, value in TYPED.items() if name != "phases"}
    soft = DistillationSettings(layers=2)
    distill_encoder({**typed, "steps": 1}, soft, teacher=teacher, corpus={own_corpus: 1.0}, out=tmp_path / "run")
    config = open_model(str(tmp_path / "run")).config
    shape = {name: getattr(config, name) for name in ("layers", "hidden", "heads", *changes)}
    assert shape == {"layers": 2, "hidden": 48, "heads": 4, **changes}
    assert read_json(tmp_path / "run/run.json")["data"]["init_from"] is None
    long = {**TYPED, "phases": [{"length": 64, "share": 1.0}]}
    with pytest.raises(InputError, match="has 40 positions, and rows are 64 tokens long; give --lengths"):
        distill_encoder(long, soft, teacher=teacher, corpus={own_corpus: 1.0}, out=tmp_path / "long")
