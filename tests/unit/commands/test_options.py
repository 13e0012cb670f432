"""Options that are read from settings classes: their groups, defaults and names, and that help imports little."""

import re
import subprocess
import sys

import pytest

from bertwright.cli import main
from bertwright.commands.options import entries, option_at
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.pretraining.settings import PretrainSettings
from bertwright.serving.settings import ServeSettings


@pytest.mark.parametrize("command", ["pretrain", "finetune", "serve"])
def test_the_help_of_a_command_imports_neither_torch_nor_numpy(command: str) -> None:
    code = (
        "import sys\nfrom bertwright.cli import main\ntry:\n"
        f"    main(['{command}', '--help'])\nexcept SystemExit:\n"
        "    sys.exit(str({'torch', 'numpy', 'numba', 'pyarrow', 'tokenizers'} & set(sys.modules) or 0))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() in ("", "0"), done.stderr


def test_options_are_grouped_and_have_the_default_of_their_setting(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["pretrain", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    groups = [f"{name} options" for name in ("model", "schedule", "optimiser", "examples", "checkpoints", "machine")]
    positions = [text.index(group) for group in groups]
    assert positions == sorted(positions)
    assert positions[2] < text.index("--learning-rate FLOAT") < positions[3]
    for default in ("128:0.9,512:0.1", "0.8 0.1 0.1", "0.0001", "tiny"):
        assert f"(default: {default})" in text


@pytest.mark.parametrize("typed", [["--recipe", "two-cores"], ["--recipe=paper-gpt", "--recipe=two-cores"]])
def test_the_help_shows_the_values_of_a_recipe(typed: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The values are those of two-cores in docs/pretraining.md; a help without a recipe comes between."""

    def defaults(*arguments: str) -> dict[str, str]:
        with pytest.raises(SystemExit):
            main(["pretrain", *arguments, "--help"])
        options = re.split(r"\n\W (?=--)", capsys.readouterr().out)
        matches = [re.match(r"(--[a-z0-9-]+).*?\(default:[\s│]+([^)]*)\)", text, re.S) for text in options]
        return {match[1]: match[2] for match in matches if match}

    general, recipe, after = defaults(), defaults(*typed), defaults()
    assert general == after
    assert {name: value for name, value in recipe.items() if value != general.get(name)} == {
        "--lengths": "128:1",
        "--batch-size": "32",
        "--minutes": "60",
        "--learning-rate": "0.002",
        "--warmup": "0.05",
        "--bias-correction": "on",
        "--initializer-range": "0.05",
        "--start": "local",
    }
    assert general["--bias-correction"] == "off"


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
