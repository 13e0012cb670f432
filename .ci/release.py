"""source → a release that installs: builds it, installs it in an empty environment without an index, and uses it.

python .ci/release.py [--wheels FOLDER] [--keep FOLDER]

Needs git, about 3 GB of disk and, without --wheels, a package index. Everything is written into a temporary folder.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = "serve,tasks"
"""Extras that are installed and used too; the others are not tried here."""
BUILD = [sys.executable, "-m", "build", "--no-isolation"]
TEXT = [f"The {noun} is {colour}. It stands near the river." for noun in ("mill", "barn") for colour in ("red", "old")]
DATA_FILES = """
from importlib.resources import files
import bertwright
for name in (
    *("model/cpu/kernels.cpp", "model/cpu/modern_layer.cpp", "model/cpu/attention.h", "model/cpu/products.h"),
    *("reports/report.html", "serving/page.html", "shipped/small-wiki/vocab.txt"),
):
    assert files("bertwright").joinpath(name).read_bytes(), name
print(bertwright.__file__)
"""
HEALTH = """
import json, subprocess, sys, urllib.request
command = [sys.argv[1], "serve", "--model", "small-wiki", "--port", "0"]
with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as service:
    try:
        address = next(word for line in service.stderr for word in line.split() if word.startswith("http://"))
        with urllib.request.urlopen(address.rstrip("/") + "/health", timeout=30) as answer:
            print(json.load(answer))
        assert b"<html" in urllib.request.urlopen(address, timeout=30).read()
    finally:
        service.terminate()
"""
CHAIN = (
    "tokenizer train text.txt --vocab-size 60 --out tok",
    "corpus build text.txt --tokenizer tok --workers 1 --out corpus",
    "pretrain --corpus corpus --size tiny --steps 3 --lengths 32 --batch-size 8 --threads 1 --out run",
    "finetune classify --model run --data rows.tsv --epochs 1 --threads 1 --out tuned",
    "predict --model tuned --input rows.tsv --output answers.tsv",
    "report run",
    "doctor --quick",
)
"""Commands from raw text to predictions, and a report about the run."""


def main() -> None:
    """Build, compare, install and use the release; a command that fails ends the program with 1."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wheels", type=Path, help="folder with wheels of the dependencies; else they are downloaded")
    parser.add_argument("--keep", type=Path, help="new folder for everything that is built and installed")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (arguments.keep or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        wheel = build(folder / "dist")
        wheels = arguments.wheels.resolve() if arguments.wheels else download(wheel, folder / "wheels")
        environment, elsewhere = folder / "environment", folder / "elsewhere"
        venv.create(environment, with_pip=True, clear=True)
        install(environment, wheels, str(wheel))
        use(environment, elsewhere)
        install(environment, wheels, f"bertwright[{EXTRAS}]")  # as messages say, where an extra is missing
        run(environment / "bin" / "python", "-m", "pip", "check")
        serve(environment, elsewhere)
    print("release: built, installed and used")


def run(*command: str | Path, where: Path = ROOT, environment: dict[str, str] | None = None) -> str:
    """Print a command, run it, and return what it prints; raise SystemExit where it fails."""
    print("$", *("…" if "\n" in str(word) else word for word in command), flush=True)
    completed = subprocess.run(
        command, cwd=where, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if completed.returncode:
        raise SystemExit(f"{completed.stdout}\nexit code {completed.returncode}: {' '.join(map(str, command))}")
    return completed.stdout


def build(dist: Path) -> Path:
    """Build the source archive and the wheel of it; return the wheel, which must equal the one of the checkout."""
    commit_time = run("git", "log", "-1", "--format=%ct").strip()
    environment = {**os.environ, "SOURCE_DATE_EPOCH": commit_time}
    run(*BUILD, "--outdir", dist, environment=environment)
    run(*BUILD, "--wheel", "--outdir", dist / "direct", environment=environment)
    (wheel,), (direct,) = dist.glob("*.whl"), dist.glob("direct/*.whl")
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in (wheel, direct)]
    if digests[0] != digests[1]:
        raise SystemExit(f"{wheel}: the wheel of the source archive differs from the one of the checkout")
    for path in sorted(dist.glob("bertwright*")):
        print(f"{path.name}: {path.stat().st_size:,} bytes, sha256 {hashlib.sha256(path.read_bytes()).hexdigest()}")
    return wheel


def download(wheel: Path, wheels: Path) -> Path:
    """Download the wheels of everything that the release needs, in the versions of constraints.txt."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary", ":all:", "-c", ROOT / "constraints.txt"]
    run(*pip, "--dest", wheels, f"{wheel}[{EXTRAS}]")
    return wheels


def install(environment: Path, wheels: Path, requirement: str) -> None:
    """Install into an environment from the folder of wheels alone, without settings of this machine."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON"))}
    pip = [environment / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-index", "--find-links", wheels]
    run(*pip, requirement, environment={**variables, "PIP_CONFIG_FILE": os.devnull})


def use(environment: Path, folder: Path) -> None:
    """Print the version, read the package's data, and run the chain, in a folder outside of the source."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    python, bertwright = (environment / "bin" / name for name in ("python", "bertwright"))
    print(outside(folder, bertwright, "--version"), end="")
    imported = Path(outside(folder, python, "-c", DATA_FILES).strip())
    if not imported.is_relative_to(environment):
        raise SystemExit(f"{imported}: expected the package of {environment}")
    (folder / "text.txt").write_text("\n".join(f"{line}\n" for line in TEXT * 20), "utf-8")
    rows = [f"{text}\t{text.split()[1]}" for text in TEXT * 10]
    (folder / "rows.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n", "utf-8")
    for command in CHAIN:
        outside(folder, bertwright, *command.split())
    print(outside(folder, bertwright, "fill", "--model", "small-wiki", "The river [MASK] cold."), end="")
    answers = (folder / "answers.tsv").read_text("utf-8").splitlines()
    if len(answers) != len(rows) + 1 or not (folder / "run" / "report.html").exists():
        raise SystemExit(f"{folder}: expected {len(rows)} answers and a report")
    command = [bertwright, "serve", "--model", "small-wiki"]
    refused = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if refused.returncode != 2 or "pip install 'bertwright[serve]'" not in refused.stderr:
        raise SystemExit(f"serve without its extra: exit code {refused.returncode}: {refused.stderr}")


def serve(environment: Path, folder: Path) -> None:
    """Start the service, and read its health and its page."""
    print(outside(folder, environment / "bin" / "python", "-c", HEALTH, environment / "bin" / "bertwright"), end="")


def outside(folder: Path, *command: str | Path) -> str:
    """Run a command in a folder, without variables that could lead Python to the source; return what it prints."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return run(*command, where=folder, environment=variables)


if __name__ == "__main__":
    main()
