"""The tutorial's commands, one after another as they are printed, with fewer minutes, epochs and seeds."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorial.md"
LESS = (
    (r"quickstart --out quickstart --minutes 2", "quickstart --out quickstart --minutes 0.5"),
    (r"--minutes 5", "--minutes 0.2"),
    (r"--epochs 15", "--epochs 1"),
    (r"--seeds 3", "--seeds 1"),
    (r"--model lm=run$", "--model lm=run --port 0"),
)


def printed() -> list[str]:
    """The lines of code blocks, in order."""
    return [line.strip() for line in PAGE.read_text("utf-8").splitlines() if line.startswith("    ")]


@pytest.mark.slow
def test_the_tutorial_does_what_it_says(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, module in (("bertwright", "-m bertwright "), ("python", "")):
        (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable} {module}"$@"\n')
        (programs / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    ran, service, port = 0, None, ""
    try:
        for line in printed():
            for pattern, shorter in LESS:
                line = re.sub(pattern, shorter, line)
            if line.startswith("curl") and not shutil.which("curl"):
                ran += 1  # the next line asks in Python
                continue
            if line.startswith("bertwright serve"):
                service = subprocess.Popen(
                    ["sh", "-c", f"exec {line}"], cwd=tmp_path, env=environment, stderr=-1, text=True
                )
                assert service.stderr
                told = next(text for text in service.stderr if "serving at" in text)
                port = told.split("http://127.0.0.1:")[1].split()[0]
                for _ in range(100):
                    try:
                        urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10).close()
                        break
                    except OSError:
                        time.sleep(0.1)
            else:
                found = subprocess.run(
                    line.replace(":8000", f":{port}"),
                    shell=True,
                    cwd=tmp_path,
                    env=environment,
                    capture_output=True,
                    text=True,
                )
                assert found.returncode == 0, f"{line}\n{found.stdout}\n{found.stderr}"
                if line.startswith("curl"):
                    assert json.loads(found.stdout)["kind"] == "classification", found.stdout
                if line.startswith("python"):
                    assert found.stdout.startswith("Label(label="), found.stdout
            ran += 1
    finally:
        if service:
            service.send_signal(signal.SIGINT)
            service.communicate(timeout=60)
    assert service
    assert service.returncode == 0
    assert ran == len(printed())
    assert (tmp_path / "run" / "report.html").is_file()
    assert "pipeline_tag: text-classification" in (tmp_path / "tuned" / "model" / "README.md").read_text("utf-8")
    assert len((tmp_path / "answers.tsv").read_text("utf-8").splitlines()) > 100
