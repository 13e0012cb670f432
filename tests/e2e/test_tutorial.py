"""The tutorial's commands, one after another as they are printed, with fewer minutes, epochs and seeds."""

import json
import re
import shlex
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest

from bertwright.cli import main
from tests.support.pages import ROOT
from tests.support.shell import environment_with, in_shell, start_service, stop

PAGE = ROOT / "docs" / "tutorial.md"
LESS = (
    (r"quickstart --out quickstart --minutes 2", "quickstart --out quickstart --minutes 0.5"),
    (r"--minutes 5", "--minutes 0.2"),
    (r"--seeds 3", "--seeds 1 --epochs 1"),
    (r"--model lm=run$", "--model lm=run --port 0"),
)


def printed() -> list[str]:
    """The lines of code blocks, in order."""
    return [line.strip() for line in PAGE.read_text("utf-8").splitlines() if line.startswith("    ")]


@pytest.mark.slow
def test_the_tutorial_does_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    environment = environment_with(tmp_path / "bin")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("bertwright.quickstart.run.SEEDS", 2)
    requests, port = [], ""
    with ExitStack() as running:
        for line in printed():
            for pattern, shorter in LESS:
                line = re.sub(pattern, shorter, line)
            program = shlex.split(line)[0]
            if line.startswith("bertwright quickstart"):  # in this process, which has fewer seeds
                assert main(shlex.split(line)[1:]) == 0
            elif line.startswith("bertwright serve"):
                service, port = start_service(shlex.split(line)[1:], environment)
                running.callback(stop, service)
            elif program != "curl" or shutil.which(program):  # without one, the next line asks in Python
                shown = in_shell(line.replace(":8000", f":{port}"), environment)
                requests += [program] if program in ("curl", "python") else []
                if program == "curl":
                    assert json.loads(shown)["kind"] == "classification", shown
                if program == "python":
                    assert shown.startswith("Label(label="), shown
    assert port
    assert "python" in requests
    assert (tmp_path / "run" / "report.html").is_file()
    assert "pipeline_tag: text-classification" in (tmp_path / "tuned" / "model" / "README.md").read_text("utf-8")
    assert len((tmp_path / "answers.tsv").read_text("utf-8").splitlines()) > 100
