"""Options that are read from settings classes: their groups, defaults and names, and that help imports little."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from bertwright.cli import main
from bertwright.commands.options import entries, option_at
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.pretraining.settings import PretrainSettings
from bertwright.serving.settings import ServeSettings

HEAVY = {"torch", "numpy", "numba", "pyarrow", "tokenizers"}


@pytest.mark.parametrize(
    ("command", "allowed"),
    [("pretrain", set()), ("serve", set()), ("finetune", {"numpy"}), ("evaluate", {"numpy"}), ("doctor", {"numpy"})],
)
def test_the_help_of_a_command_imports_no_heavy_library(command: str, allowed: set[str]) -> None:
    code = (
        "import sys\nfrom bertwright.cli import main\ntry:\n"
        f"    main(['{command}', '--help'])\nexcept SystemExit:\n"
        f"    sys.exit(str(set({sorted(HEAVY - allowed)}) & set(sys.modules) or 0))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "0", done.stderr


def test_the_help_of_finetune_lists_all_tasks_those_of_other_distributions_too(tmp_path: Path) -> None:
    (tmp_path / "other_tasks.py").write_text(
        "from bertwright.tasks.classification.spec import ClassificationTask\n"
        "MOODS = ClassificationTask(name='moods-of-ours', text=('text',), labels=('glad', 'sad'))\n"
    )
    metadata = tmp_path / "other-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[bertwright.tasks]\nmoods = other_tasks\n")
    code = f"import sys\nsys.path.append({str(tmp_path)!r})\nfrom bertwright.cli import main\nmain(sys.argv[1:])"
    for command in ("finetune", "evaluate", "doctor"):
        done = subprocess.run(
            [sys.executable, "-c", code, command, "--help"], capture_output=True, text=True, check=False
        )
        words = set(re.findall(r"[\w-]+", done.stdout))
        assert {"moods-of-ours", "sst2", "classify"} <= words, done.stderr
        assert {"ner", "squad2", "swag"} <= words, command


def test_options_are_grouped_and_have_the_default_of_their_setting(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["pretrain", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    groups = [f"{name} options" for name in ("model", "schedule", "optimiser", "examples", "checkpoints", "machine")]
    positions = [text.index(group) for group in groups]
    assert positions == sorted(positions)
    assert positions[2] < text.index("--learning-rate FLOAT") < positions[3]
    for default in ("chosen", "0.8 0.1 0.1", "muon"):
        assert f"(default: {default})" in text


@pytest.mark.parametrize("typed", [["--recipe", "paper-gpt"], ["--recipe=paper-base", "--recipe=paper-gpt"]])
def test_the_help_shows_the_values_of_a_recipe(typed: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The values are those of GPT-1's paper; a help without a recipe comes between."""

    def defaults(*arguments: str) -> dict[str, str]:
        with pytest.raises(SystemExit):
            main(["pretrain", *arguments, "--help"])
        options = re.split(r"\n\W (?=--)", capsys.readouterr().out)
        matches = [re.match(r"(--[a-z0-9-]+).*?\(default:[\s│]+([^)]*)\)", text, re.S) for text in options]
        return {match[1]: match[2] for match in matches if match}

    general, recipe, after = defaults(), defaults(*typed), defaults()
    assert general == after
    assert {name: value for name, value in recipe.items() if value != general.get(name)} == {
        "--system": "gpt",
        "--size": "base",
        "--activation": "gelu_tanh",
        "--dropout": "0.1",
        "--initializer-range": "0.02",
        "--start": "random",
        "--lengths": "512:1",
        "--batch-size": "64",
        "--steps": "1000000",
        "--optimizer": "adamw",
        "--muon-rate": "0.006",
        "--learning-rate": "0.00025",
        "--warmup": "0.002",
        "--schedule": "cosine",
        "--second-sentence": "none",
        "--mask-share": "0.15",
        "--evaluations": "20",
    }
    chosen = {
        "--size",
        "--dropout",
        "--initializer-range",
        "--muon-rate",
        "--lengths",
        "--batch-size",
        "--minutes",
        "--learning-rate",
        "--start",
        "--evaluations",
    }
    assert {name for name, value in general.items() if value == "chosen"} == chosen
    assert general["--bias-correction"] == "on"


@pytest.mark.parametrize("settings", [PretrainSettings, FinetuneSettings, ServeSettings])
def test_every_option_has_a_help_and_a_name_of_its_own(settings: type) -> None:
    options = list(entries(settings))
    assert all(option.help.endswith((".", ")")) for option in options)
    assert len({option.name for option in options}) == len(options)


def test_a_setting_leads_back_to_its_option() -> None:
    assert option_at("PretrainSettings", ("optimizer", "warmup")) == "--warmup"
    assert option_at("PretrainSettings", ("phases", 1, "length")) == "--lengths"
    assert option_at("PretrainSettings", ("examples", "masking", "same")) == "--mask-same-random"
    assert option_at("PretrainSettings", ("optimizer", "beta1")) is None
    assert option_at("NoSettings", ("steps",)) is None
