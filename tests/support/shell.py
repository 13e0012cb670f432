"""A printed line, run as a person at a shell would: this Python's programs are found, and services answer."""

import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from tests.support.pages import ROOT

PROGRAMS = {"bertwright": "-m bertwright ", "python": "", "torchrun": "-m torch.distributed.run "}


def environment_with(programs: Path) -> dict[str, str]:
    """An environment whose shell finds what is written into the folder `programs`: this Python's, and xzcat."""
    for name, module in PROGRAMS.items():
        (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable} {module}"$@"\n')
        (programs / name).chmod(0o755)
    (programs / "xzcat").write_text(
        f"#!{sys.executable}\nimport lzma, shutil, sys\nshutil.copyfileobj(lzma.open(sys.argv[1]), sys.stdout.buffer)\n"
    )  # not every small machine has one
    (programs / "xzcat").chmod(0o755)
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": ":".join(paths)}


def in_shell(line: str, environment: dict[str, str]) -> str:
    """Run a line in the current folder, which must end well; what it printed."""
    shell = ["bash", "-o", "pipefail", "-c", line]
    done = subprocess.run(shell, env=environment, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def start_service(words: list[str], environment: dict[str, str]) -> tuple[subprocess.Popen[str], str]:
    """The process and its port, when it answers."""
    service = subprocess.Popen(["bertwright", *words], env=environment, stderr=subprocess.PIPE, text=True)
    assert service.stderr
    announcement = next((line for line in service.stderr if "serving at" in line), "")
    assert announcement, "it ended"
    port = announcement.split("http://127.0.0.1:")[1].split()[0]
    for _ in range(100):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10) as answer:
                assert answer.status == 200
            break
        except OSError:
            time.sleep(0.1)
    return service, port


def stop(service: subprocess.Popen[str]) -> None:
    """Ctrl-C, after which it must end well."""
    service.send_signal(signal.SIGINT)
    service.communicate(timeout=60)
    assert service.returncode == 0
