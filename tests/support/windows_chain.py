"""The whole chain in one process, text → answer, for `tests/e2e/test_windows.py`: `python windows_chain.py FOLDER`."""

import pkgutil
import signal
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import bertwright


def import_all() -> int:
    """Import every module of bertwright; return their number."""
    names = [module.name for module in pkgutil.walk_packages(bertwright.__path__, "bertwright.")]
    for name in names:
        if not name.endswith("__main__"):
            import_module(name)
    return len(names)


def run(*arguments: str | Path, code: int = 0) -> None:
    """Run a command in this process."""
    from bertwright.cli import main

    if (got := main([str(argument) for argument in arguments])) != code:
        raise SystemExit(f"{arguments}: exit code {got}")


def stopped_after_a_step(*arguments: str | Path) -> None:
    """Run a training command that gets Ctrl-C in its first step, and so stops after it."""
    from bertwright.training.run_folder import RunFolder

    log = RunFolder.log

    def interrupt(self: RunFolder, line: Mapping[str, Any]) -> None:
        log(self, line)
        RunFolder.log = log
        signal.raise_signal(signal.SIGINT)

    RunFolder.log = interrupt
    run(*arguments)


def chain(folder: Path) -> None:
    """Train a tokenizer, build a corpus, pre-train with a stop between, fine-tune, answer, and search."""
    places = ["the old mill", "a river", "our garden", "the north gate", "a small house"]
    lines = [f"{one} is near {other}.\n{other} is green in spring." for one in places for other in places]
    text = folder / "text.txt"
    text.write_text("\n\n".join(lines * 2), "utf-8")
    run("tokenizer", "train", text, "--out", folder / "tokenizer", "--vocab-size", "120")
    built = ("corpus", "build", text, "--tokenizer", folder / "tokenizer", "--workers", "1", "--out", folder / "corpus")
    run(*built)
    run("corpus", "verify", folder / "corpus")
    size = "--steps 4 --batch-size 4 --lengths 32 --log-every 1 --threads 1 --precision fp32 --compile off".split()
    pretrain = ("pretrain", "--corpus", folder / "corpus", *size, "--size", "1x64", "--out", folder / "run")
    stopped_after_a_step(*pretrain)
    run(*pretrain, "--resume")
    run(*pretrain, "--resume")  # it has finished
    run("runs", folder)
    run("report", folder / "run")
    run("fill", "--model", folder / "run", "the old [MASK] is near a river.")
    rows = "".join(f"{line.splitlines()[0]}\t{number % 2}\n" for number, line in enumerate(lines))
    (folder / "data").mkdir()
    for name in ("train.tsv", "dev.tsv"):
        (folder / "data" / name).write_text(f"sentence\tlabel\n{rows}", "utf-8")
    tuned = ("--model", folder / "run", "--data", folder / "data", "--out", folder / "sst2", "--epochs", "1")
    run("finetune", "sst2", *tuned, "--threads", "1", "--precision", "fp32")
    predict = ("predict", "--model", folder / "sst2", "--input", folder / "data" / "dev.tsv")
    for _ in range(2):  # the second time a file is replaced
        run(*predict, "--output", folder / "answers.tsv", "--precision", "fp32")
    (folder / "more.txt").write_text("a mill\n", "utf-8")
    index = ("index", folder / "data" / "dev.tsv", "--text-column", "sentence", "--out", folder / "index")
    run(*index, "--precision", "fp32", "--model", folder / "run")
    run("index", folder / "more.txt", "--out", folder / "index", "--precision", "fp32", "--add")
    run("index", "--out", folder / "index", "--join")
    run("search", folder / "index", "the old mill", "--precision", "fp32")


if __name__ == "__main__":
    print(import_all(), flush=True)
    chain(Path(sys.argv[1]))
