"""Command lines → settings: the values that each of them comes to, written out."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from bertwright.cli import main
from bertwright.finetuning import grid
from bertwright.finetuning import run as finetuning_run
from bertwright.pretraining import held_out
from bertwright.pretraining import run as pretraining_run
from bertwright.serving import server
from tests.support.commands import CaughtSettings

PRETRAIN_DEFAULTS = {
    "system": "bert",
    "size": "tiny",
    "phases": [{"length": 128, "share": 0.9}, {"length": 512, "share": 0.1}],
    "batch_size": 256,
    "micro_tokens": 8192,
    "steps": None,
    "minutes": None,
    "words": None,
    "epochs": None,
    "checkpoints_by_words": False,
    "seed": 0,
    "examples": {
        "second_sentence": "next",
        "short_share": 0.1,
        "static_masks": 0,
        "causal_share": 0.0,
        "masking": {"share": 0.15, "mask": 0.8, "same": 0.1, "random": 0.1, "units": "piece", "max_predictions": None},
    },
    "optimizer": {
        "method": "adamw",
        "learning_rate": 0.0001,
        "muon_rate": 0.006,
        "warmup": 0.01,
        "schedule": "linear",
        "decay_share": 0.2,
        "beta1": 0.9,
        "beta2": 0.999,
        "epsilon": 1e-06,
        "weight_decay": 0.01,
        "clip": 1.0,
        "bias_correction": False,
    },
    "activation": "gelu",
    "dropout": 0.1,
    "initializer_range": 0.02,
    "start": "random",
    "held_out_share": 0.0,
    "held_out_rows": 2048,
    "evaluations": 20,
    "snapshots": [],
    "embedding_size": None,
    "generator_width": 0.25,
    "mask_schedule": [],
    "batch_schedule": [],
    "z_loss": 0.0,
    "save_minutes": 5.0,
    "keep": 2,
    "log_every": 50,
    "precision": "auto",
    "compile": "auto",
    "activation_checkpointing": False,
    "threads": None,
    "device": "cpu",
    "skip_loss_spikes": False,
}

PRETRAIN: dict[str, dict[str, Any]] = {
    "--recipe paper-base --steps 7": {"size": "base", "steps": 7},
    "--recipe paper-base": {"size": "base", "steps": 1000000},
    "--recipe paper-base --words 1.5M --epochs 10 --checkpoints-by-words": {
        "size": "base",
        "words": 1_500_000,
        "epochs": 10.0,
        "checkpoints_by_words": True,
    },
    "--recipe paper-large": {"size": "large", "steps": 1000000},
    "--recipe paper-gpt": {
        "system": "gpt",
        "size": "base",
        "phases": [{"length": 512, "share": 1.0}],
        "batch_size": 64,
        "steps": 1000000,
        "examples": {"second_sentence": "none"},
        "optimizer": {
            "learning_rate": 0.00025,
            "warmup": 0.002,
            "schedule": "cosine",
            "epsilon": 1e-08,
            "bias_correction": True,
        },
        "activation": "gelu_tanh",
    },
    "--recipe paper-base --batch-size 32 --lengths 128": {
        "size": "base",
        "phases": [{"length": 128, "share": 1.0}],
        "batch_size": 32,
        "steps": 1000000,
    },
    "--recipe paper-base --minutes 3": {"size": "base", "minutes": 3.0},
    "--recipe paper-gpt --size tiny --system bert-left --activation gelu --second-sentence none": {
        "system": "bert-left",
        "phases": [{"length": 512, "share": 1.0}],
        "batch_size": 64,
        "steps": 1000000,
        "examples": {"second_sentence": "none"},
        "optimizer": {
            "learning_rate": 0.00025,
            "warmup": 0.002,
            "schedule": "cosine",
            "epsilon": 1e-08,
            "bias_correction": True,
        },
    },
    "--recipe paper-gpt --system lstm-left --activation gelu": {
        "system": "lstm-left",
        "size": "base",
        "phases": [{"length": 512, "share": 1.0}],
        "batch_size": 64,
        "steps": 1000000,
        "examples": {"second_sentence": "none"},
        "optimizer": {
            "learning_rate": 0.00025,
            "warmup": 0.002,
            "schedule": "cosine",
            "epsilon": 1e-08,
            "bias_correction": True,
        },
    },
    "--recipe paper-base --second-sentence order --mask-units span --mask-share 0.2": {
        "size": "base",
        "steps": 1000000,
        "examples": {"second_sentence": "order", "masking": {"share": 0.2, "units": "span"}},
    },
    "--steps 5 --lengths 16:0.5,32:0.5 --held-out 0.01": {
        "phases": [{"length": 16, "share": 0.5}, {"length": 32, "share": 0.5}],
        "steps": 5,
        "held_out_share": 0.01,
    },
    "--steps 5 --held-out folder --evaluations 3 --snapshots 0.1,0.5": {
        "steps": 5,
        "evaluations": 3,
        "snapshots": [0.1, 0.5],
    },
    "--steps 5 --no-next-sentence --whole-word-mask --static-masks 3 --short-share 0.2": {
        "steps": 5,
        "examples": {"second_sentence": "none", "short_share": 0.2, "static_masks": 3, "masking": {"units": "word"}},
    },
    "--steps 5 --second-sentence none --no-next-sentence --mask-units word --whole-word-mask": {
        "steps": 5,
        "examples": {"second_sentence": "none", "masking": {"units": "word"}},
    },
    "--steps 5 --mask-same-random 0.7 0.2 0.1": {
        "steps": 5,
        "examples": {"masking": {"mask": 0.7, "same": 0.2}},
    },
    "--steps 5 --optimizer muon --muon-rate 0.01 --warmup 0.1 --schedule cosine --weight-decay 0 --clip 0.5": {
        "steps": 5,
        "optimizer": {
            "method": "muon",
            "muon_rate": 0.01,
            "warmup": 0.1,
            "schedule": "cosine",
            "weight_decay": 0.0,
            "clip": 0.5,
        },
    },
    "--steps 5 --beta2 0.98 --bias-correction": {
        "steps": 5,
        "optimizer": {"beta2": 0.98, "bias_correction": True},
    },
    "--steps 5 --system gpt": {
        "system": "gpt",
        "steps": 5,
        "examples": {"second_sentence": "none"},
        "activation": "gelu_tanh",
    },
    "--steps 5 --system gpt --size 4x256 --lengths 64 --dropout 0": {
        "system": "gpt",
        "size": "4x256",
        "phases": [{"length": 64, "share": 1.0}],
        "steps": 5,
        "examples": {"second_sentence": "none"},
        "activation": "gelu_tanh",
        "dropout": 0.0,
    },
    "--steps 5 --system lstm-right --lengths 32": {
        "system": "lstm-right",
        "phases": [{"length": 32, "share": 1.0}],
        "steps": 5,
        "examples": {"second_sentence": "none"},
    },
    "--steps 5 --system bert-right --start matching --seed 11": {
        "system": "bert-right",
        "steps": 5,
        "seed": 11,
        "examples": {"second_sentence": "none"},
        "start": "matching",
    },
    "--steps 5 --save-minutes 0.5 --keep 3 --log-every 10 --micro-tokens 4096 --precision fp32 --compile off": {
        "micro_tokens": 4096,
        "steps": 5,
        "save_minutes": 0.5,
        "keep": 3,
        "log_every": 10,
        "precision": "fp32",
        "compile": "off",
    },
    "--steps 5 --activation-checkpointing --skip-loss-spikes --threads 2 --device cpu": {
        "steps": 5,
        "activation_checkpointing": True,
        "threads": 2,
        "skip_loss_spikes": True,
    },
    "--steps 5 --corpus other=0.3 --resume --allow-other-numerics": {"steps": 5},
}

FINETUNE_DEFAULTS = {
    "epochs": None,
    "batch_size": None,
    "learning_rate": None,
    "head_learning_rate": None,
    "layer_decay": 1.0,
    "warmup": None,
    "weight_decay": 0.01,
    "bias_correction": True,
    "lm_weight": None,
    "bilstm": None,
    "new_layers": 0,
    "frozen_layers": 0,
    "features": None,
    "lstm_width": 768,
    "max_length": 128,
    "patience": None,
    "best": None,
    "seeds": 1,
    "first_seed": 0,
    "precision": "auto",
    "activation_checkpointing": False,
    "threads": None,
    "device": "cpu",
}

FINETUNE: dict[str, dict[str, Any]] = {
    "sst2": {},
    "stsb --epochs 4 --batch-size 16 --learning-rate 2e-5 --seeds 5 --first-seed 3": {
        "epochs": 4,
        "batch_size": 16,
        "learning_rate": 2e-05,
        "seeds": 5,
        "first_seed": 3,
    },
    "squad2": {"max_length": 384},
    "squad1 --max-length 200": {"max_length": 200},
    "ner --head-learning-rate 1e-3 --layer-decay 0.9 --warmup 0.2 --weight-decay 0": {
        "head_learning_rate": 0.001,
        "layer_decay": 0.9,
        "warmup": 0.2,
        "weight_decay": 0.0,
    },
    "classify --no-bias-correction --lm-weight 0.5 --bilstm 64 --new-layers 1 --frozen-layers 2": {
        "bias_correction": False,
        "lm_weight": 0.5,
        "bilstm": 64,
        "new_layers": 1,
        "frozen_layers": 2,
    },
    "classify --features sum-last-four --lstm-width 256 --precision bf16 --text-column a --label-column b": {
        "features": "sum-last-four",
        "lstm_width": 256,
        "precision": "bf16",
    },
    "swag --activation-checkpointing --threads 1 --device cpu --resume": {
        "activation_checkpointing": True,
        "threads": 1,
    },
    "cola --grid paper": {},
    "sst2 --grid learning-rate=1e-3,3e-4 --epochs 2": {"epochs": 2},
}

SERVE_DEFAULTS = {
    "host": "127.0.0.1",
    "port": 8000,
    "token": None,
    "max_body": 1000000,
    "max_inputs": 256,
    "max_characters": 100000,
    "max_waiting_tokens": 8192,
    "timeout": 30.0,
    "read_timeout": 10.0,
    "max_connections": 512,
    "batch_tokens": 4096,
}

SERVE: dict[str, dict[str, Any]] = {
    "--model small-wiki": {},
    "--model a=small-wiki --host 0.0.0.0 --port 0 --token secret --max-inputs 3 --max-characters 9 --max-body 99": {
        "host": "0.0.0.0",
        "port": 0,
        "token": "secret",
        "max_body": 99,
        "max_inputs": 3,
        "max_characters": 9,
    },
    "--model small-wiki --max-waiting-tokens 9999 --timeout 2.5 --batch-tokens 512": {
        "max_waiting_tokens": 9999,
        "timeout": 2.5,
        "batch_tokens": 512,
    },
}


@pytest.fixture
def parse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict[str, Any]]:
    """Return a function from a command line to the settings with which the command would run."""

    def catch(settings: BaseModel, *_: object, **__: object) -> None:
        raise CaughtSettings(settings)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pretraining_run, "pretrain", catch)
    monkeypatch.setattr(held_out, "held_out_fraction", lambda _, wanted: wanted)
    monkeypatch.setattr(finetuning_run, "tune", catch)
    monkeypatch.setattr(grid, "search_grid", catch)
    monkeypatch.setattr(server, "open_models", lambda *_, **__: ({}, 1.0))
    monkeypatch.setattr(server, "serve", lambda _, settings, **__: catch(settings))

    def parse_line(line: str) -> dict[str, Any]:
        with pytest.raises(CaughtSettings) as caught:
            main(line.split())
        settings: BaseModel = caught.value.args[0]
        return settings.model_dump(mode="json")

    return parse_line


def changed(defaults: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults with some of their values changed, group by group."""
    assert changes.keys() <= defaults.keys()
    return {
        name: changed(value, changes.get(name, {})) if isinstance(value, dict) else changes.get(name, value)
        for name, value in defaults.items()
    }


@pytest.mark.parametrize("line", PRETRAIN)
def test_pretrain(parse: Callable[[str], dict[str, Any]], line: str) -> None:
    recipe = "" if "--recipe" in line else "--recipe paper-base --size tiny"
    settings = parse(f"pretrain --corpus c --out o {recipe} {line}")
    assert settings == changed(PRETRAIN_DEFAULTS, PRETRAIN[line])


def test_a_resumed_fine_tuning_keeps_its_length(parse: Callable[[str], dict[str, Any]], tmp_path: Path) -> None:
    (tmp_path / "o").mkdir()
    (tmp_path / "o" / "run.json").write_text('{"settings": {"max_length": 77}}')
    line = "finetune embed --model random:tiny --data d --out o"
    assert parse(line)["max_length"] == 128  # the command refuses the folder later
    assert parse(f"{line} --resume")["max_length"] == 77
    assert parse(f"{line} --resume --max-length 64")["max_length"] == 64


@pytest.mark.parametrize("line", FINETUNE)
def test_finetune(parse: Callable[[str], dict[str, Any]], line: str) -> None:
    settings = parse(f"finetune {line} --model random:tiny --data d --out o")
    assert settings == changed(FINETUNE_DEFAULTS, FINETUNE[line])


@pytest.mark.parametrize("line", SERVE)
def test_serve(parse: Callable[[str], dict[str, Any]], line: str) -> None:
    assert parse(f"serve {line}") == changed(SERVE_DEFAULTS, SERVE[line])
