"""bertwright paper families at the scale of seconds: stopped in a trial, repeated, its page from the records."""

import json
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from bertwright.cli import main
from bertwright.training import loop
from tests.support.blimp import write_blimp
from tests.support.paper_data import write_data

OWN_TEXT = Path(__file__).parents[1] / "fixtures" / "own_text.txt"
ARMS = ("--arms", "bert,electra", "--tasks", "rte", "--seeds", "1", "--pretraining-seeds", "1")
TIME = ("--minutes", "0.01", "--rate-share", "0.5")


@pytest.mark.slow
def test_stopped_in_a_trial_and_repeated_it_ends_with_the_steps_that_were_measured_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, data = tmp_path / "out", write_data(tmp_path / "data")
    options = ["paper", "families", "--scale", "smoke", "--out", str(out), *ARMS, *TIME]
    inputs = ["--data", str(data), "--corpus", str(OWN_TEXT), "--blimp", str(write_blimp(tmp_path / "blimp"))]

    def run(*more: str) -> dict[str, Any]:
        capsys.readouterr()
        assert main([*options, *more, "--json"]) == 0
        shown = capsys.readouterr().out
        return json.loads(shown.splitlines()[-1]) if shown else {}

    planned = run(*inputs, "--plan")
    assert (planned["pretrainings"]["all"], planned["measures_speed"]) == (8, True)
    assert {(row["system"], row["is_trial"], row["count"]) for row in planned["models"]} == {
        (system, *kind) for system in ("bert", "electra") for kind in ((False, 1), (True, 3))
    }
    assert not out.exists()

    really = loop.Loop.step

    def stop_at_the_second_trial(self: Any, *arguments: Any) -> Any:
        if len(list(out.glob("pretrained/*-seed100-*"))) == 2:
            signal.raise_signal(signal.SIGINT)
        return really(self, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(loop.Loop, "step", stop_at_the_second_trial)
        run(*inputs)
    speeds = (out / "locks/families-smoke-speeds.json").read_bytes()
    assert (out / "locks/families-smoke.json").is_file()
    page = out / "results/families.md"
    assert "**Not finished:**" in page.read_text("utf-8")
    assert not list(out.glob("pretrained/bert-2x128-seed0-*"))

    result = run(*inputs)
    assert (result["left"], result["failed"]) == ({"pretrainings": 0, "measurements": 0}, {})
    assert (out / "locks/families-smoke-speeds.json").read_bytes() == speeds
    text = page.read_text("utf-8")
    assert re.search(r"\| ELECTRA \(`electra`\) \| [\d.]+ \| does not apply \| does not apply \|", text)
    assert re.search(r"\| BERT \| \d+ \| \d+ \| 0\.0 M \| .*\*\*\d\.\d{3}\*\*.* \|", text)
    assert len(list(out.glob("pretrained/*-seed100-*/run.json"))) == 6
    assert not list(out.glob("pretrained/*-seed100-*/model"))

    monkeypatch.setattr(loop.Loop, "step", None)
    assert run(*inputs)["left"] == {"pretrainings": 0, "measurements": 0}
    for name in ("wordpiece-400", "tokenizer-wordpiece-400"):
        shutil.rmtree(out / "corpora" / name)
    run("--data", str(tmp_path / "nowhere"), "--page")
    assert page.read_text("utf-8") == text
