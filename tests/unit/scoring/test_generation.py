"""Drawing of tokens, the command generate and its refusals."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import bertwright as bw
from bertwright.commands.scoring import generate_command
from bertwright.errors import InputError, RunFailed
from bertwright.model.backbones import build_backbone
from bertwright.model.encoder import init_weights
from bertwright.model.folder import save_model
from bertwright.model.system import system_config
from bertwright.scoring.generation import drawn_token
from bertwright.scoring.settings import GenerateSettings
from tests.support.served import overflowing


@pytest.fixture(scope="module")
def random_models(tmp_path_factory: pytest.TempPathFactory, own_tokenizer: Path) -> dict[str, str]:
    """A GPT-2 and a BERT of random weights."""
    base = tmp_path_factory.mktemp("generated")
    for system, architecture in (("gpt2", "GPT2LMHeadModel"), ("bert", "BertModel")):
        config = system_config(system, "2x128", 500, max_positions=24)
        model = nn.ModuleDict({"encoder": build_backbone(config)})
        init_weights(model, 0.3, torch.Generator().manual_seed(4))
        save_model(base / system, model, config=config, tokenizer=own_tokenizer, architecture=architecture)
    return {system: str(base / system) for system in ("gpt2", "bert")}


def test_tokens_are_drawn_as_often_as_they_are_probable() -> None:
    logits = torch.tensor([0.1, 0.5, 0.15, 0.25]).log()

    def fractions(**settings: Any) -> list[float]:
        generator = torch.Generator().manual_seed(1)
        chosen = [drawn_token(logits, settings=GenerateSettings(**settings), generator=generator) for _ in range(4000)]
        return [chosen.count(token) / len(chosen) for token in range(4)]

    assert fractions(temperature=1.0) == pytest.approx([0.1, 0.5, 0.15, 0.25], abs=0.03)
    squares = [0.01, 0.25, 0.0225, 0.0625]
    assert fractions(temperature=0.5) == pytest.approx([part / sum(squares) for part in squares], abs=0.03)
    for temperature in (1e-20, 1e-40, 1e-300):
        assert fractions(temperature=temperature) == [0, 1, 0, 0]
    assert fractions(top_k=2) == pytest.approx([0, 2 / 3, 0, 1 / 3], abs=0.03)
    assert fractions(top_p=0.6) == pytest.approx([0, 2 / 3, 0, 1 / 3], abs=0.03)  # 0.5 alone does not reach it


def test_the_command_and_python_give_the_same_texts(random_models: dict[str, str], tmp_path: Path) -> None:
    prompts = ["the old bridge", "near the harbour"]
    typed = generate_command(random_models["gpt2"], prompt=tuple(prompts), tokens=5, precision="fp32")
    (tmp_path / "prompts.txt").write_text("\n".join(prompts) + "\n", "utf-8")
    read = generate_command(random_models["gpt2"], input=str(tmp_path / "prompts.txt"), tokens=5, precision="fp32")
    assert read == typed
    model = bw.load(random_models["gpt2"], precision="fp32")
    assert [vars(each) for each in model.generate(prompts, tokens=5)] == typed["continuations"]
    assert vars(model.generate(prompts[0], tokens=5)) == typed["continuations"][0]
    assert [each["prompt"] for each in typed["continuations"]] == prompts
    assert typed["text"].count("\n") == 1
    full = model.generate("the old bridge", tokens=1000)
    assert (full.tokens, full.stopped) == (24 - len(model.tokenizer.ids(["the old bridge"])[0]) + 1, "positions")


def test_outputs_that_are_not_finite_name_the_prompt(random_models: dict[str, str], tmp_path: Path) -> None:
    broken = overflowing(random_models["gpt2"], tmp_path / "m", "the")
    samplings: list[dict[str, Any]] = [{}, {"temperature": 1.0}]
    for settings in samplings:
        with pytest.raises(RunFailed, match="prompt 0: expected finite numbers from the model"):
            generate_command(broken, prompt=("the river",), precision="fp32", **settings)


def test_what_cannot_be_continued_is_refused(random_models: dict[str, str], tmp_path: Path) -> None:
    gpt2, prompt = random_models["gpt2"], ("a bridge",)
    for settings, message in (
        ({"temperature": 0.0}, "temperature 0: expected a number above 0; leave it out to take the most probable"),
        ({"temperature": -1.0}, "temperature -1: expected"),
        ({"top_p": 0.0}, "top_p 0: expected a probability above 0 and at most 1"),
        ({"top_p": 1.5}, "top_p 1.5: expected"),
        ({"top_k": 0}, "top_k 0: expected a whole number, 1 or more"),
        ({"top_k": 1.5}, "top_k 1.5: expected a whole number, 1 or more"),
        ({"top_k": True}, "top_k True: expected a whole number, 1 or more"),
        ({"tokens": 0}, "tokens 0: expected a whole number, 1 or more"),
        ({"seed": -1}, "seed -1: expected"),
        ({"seed": 1.5}, "seed 1.5: expected a whole number from 0"),
        ({"temperature": "1"}, "temperature '1': expected a number"),
        ({"top_p": "0.5"}, "top_p '0.5': expected a number"),
        ({"prompt": ()}, "expected prompts, either as --prompt TEXT or in a file"),
        ({"prompt": ("a", "")}, "prompt 1: expected a text"),
        ({"prompt": ("the bridge " * 20,)}, "prompt 0: has .* tokens; expected at most 24, the positions of"),
    ):
        with pytest.raises(InputError, match=message):
            generate_command(gpt2, **{"prompt": prompt, **settings})  # type: ignore[arg-type]
    (empty := tmp_path / "empty.txt").touch()
    with pytest.raises(InputError, match=r"--input .*empty.txt: expected a prompt on each line, got no line"):
        generate_command(gpt2, input=str(empty))
    with pytest.raises(InputError, match=r"random:tiny: .* a command without that option needs a trained model"):
        generate_command("random:tiny", prompt=prompt)
    with pytest.raises(InputError, match=r"expected a GPT-1, GPT-2 or GPT-BERT, .* got another model \(BERT\)"):
        generate_command(random_models["bert"], prompt=prompt)
