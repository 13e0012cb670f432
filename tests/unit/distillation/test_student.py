"""The student's shape and the weights with which it begins."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bertwright.console import say_once
from bertwright.distillation.settings import DistillationSettings
from bertwright.distillation.student import say_larger, student_config, student_of, taken_layers
from bertwright.errors import InputError
from bertwright.model.folder import SavedModel, open_model
from bertwright.model.modern_config import ModernBertConfig
from bertwright.model.system import system_config
from bertwright.pretraining.resources import count_parameters
from bertwright.text.wordpiece import Tokenizer
from tests.support.encoders import write_encoder


@pytest.fixture(scope="module")
def four_layers(tmp_path_factory: pytest.TempPathFactory, own_tokenizer: Path) -> SavedModel:
    folder = tmp_path_factory.mktemp("teacher") / "model"
    return open_model(write_encoder(folder, own_tokenizer, layers=4, hidden=64, heads=1, intermediate=256))


@pytest.mark.parametrize(
    ("student", "teacher", "layers"),
    [
        (6, 12, [0, 2, 4, 7, 9, 11]),  # those of DistilBERT
        (3, 6, [0, 3, 5]),
        (1, 6, [0]),
        (4, 4, [0, 1, 2, 3]),
        (2, 24, [0, 23]),
    ],
)
def test_evenly_spaced_layers(student: int, teacher: int, layers: list[int]) -> None:
    assert taken_layers(student, teacher) == layers


@pytest.mark.parametrize("shape", [{"layers": 2}, {"size": "2x64"}])
def test_a_student_of_the_same_width_begins_with_layers_of_the_teacher(
    four_layers: SavedModel, shape: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    student = student_of(four_layers, DistillationSettings.model_validate(shape))
    assert student.config == four_layers.config.model_copy(update={"layers": 2})
    assert student.weights is not None
    assert four_layers.weights is not None
    for name, tensor in student.weights.items():
        taken = name.replace("encoder.layers.1.", "encoder.layers.3.")
        assert torch.equal(tensor, four_layers.weights[taken]), name
    assert not any(name.startswith("encoder.layers.2.") for name in student.weights)
    assert "begins with the embeddings and the layers 1, 4 of 4" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("reaches", "layers", "expected"),
    [
        ("gllg", 2, [True, True]),
        ("glgl", 2, [True, False]),  # as every third layer of two: the usual pattern
        ("gllg", 3, [True, False, True]),
        ("gllg", 4, [True, False, False, True]),
    ],
)
def test_a_layer_keeps_the_reach_that_it_has_in_the_teacher(
    reaches: str, layers: int, expected: list[bool], own_tokenizer: Path
) -> None:
    vocab_size = Tokenizer.load(own_tokenizer).vocab_size
    named = tuple("global" if letter == "g" else "local" for letter in reaches)
    usual = system_config("modernbert", "4x64", vocab_size)
    assert isinstance(usual, ModernBertConfig)
    config = usual.model_copy(update={"reaches": named})
    for shape in ({"layers": layers}, {"size": f"{layers}x64"}):
        student = student_config(DistillationSettings.model_validate(shape), config)
        assert isinstance(student, ModernBertConfig)
        assert [student.is_global(number) for number in range(layers)] == expected
    wider = student_config(DistillationSettings(size=f"{layers}x128"), config)  # it begins with random weights
    assert isinstance(wider, ModernBertConfig)
    assert wider.reaches is None


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ({"size": "2x128"}, "student 2x128: begins with random weights (hidden 128, heads 2, intermediate 512; "),
        ({"size": "2x64x2"}, "(heads 2; the teacher has 1)"),
        ({"layers": 5}, "student 5x64: begins with random weights (layers 5; the teacher has 4)"),
    ],
)
def test_another_shape_begins_with_random_weights(
    four_layers: SavedModel, shape: dict[str, object], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    student = student_of(four_layers, DistillationSettings.model_validate(shape))
    assert student.weights is None
    assert student.tokenizer == four_layers.tokenizer
    assert student.config.vocab_size == four_layers.config.vocab_size
    widths = {128: 0.05, 64: 0.07}  # narrow models need larger weights
    assert student.config.initializer_range == widths[student.config.hidden]
    assert words in capsys.readouterr().err


def test_another_family_is_refused(four_layers: SavedModel) -> None:
    left = replace(four_layers, config=four_layers.config.model_copy(update={"attends": "left"}))
    with pytest.raises(InputError, match="expected an encoder whose tokens attend to both sides"):
        student_of(left, DistillationSettings(layers=2))


def test_a_larger_student_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    small, large = torch.nn.Linear(2, 2), torch.nn.Linear(3, 3)
    with say_once(set()):
        say_larger(small, large)
        assert not capsys.readouterr().err
        say_larger(large, small)
    assert "the student has 12 parameters, no fewer than the teacher's 6" in capsys.readouterr().err
    assert count_parameters(large) == 12


@pytest.mark.parametrize("shape", [{}, {"size": "tiny", "layers": 2}])
def test_a_student_has_one_shape(shape: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="give either --size or --layers"):
        DistillationSettings.model_validate(shape)
