"""Every command and Python block of the README and the manual, run page by page on small data with fewer steps."""

import re
import shlex
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from glob import glob
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from bertwright.cli import main
from bertwright.finetuning.glue_submission import TASKS
from tests.support.page_data import name_things, write_korean, write_tables, write_texts
from tests.support.pages import ENDS, ROOT, command, is_excerpt, python_blocks, shell_lines
from tests.support.shell import environment_with, in_shell, start_service, stop

PAGES = {
    page.name: page.read_text("utf-8")
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    if page.name not in ("tutorial.md", "log.md")
}
"""tutorial.md has a test of its own, and the log is history."""
LINES = [(name, line) for name, text in PAGES.items() for line in shell_lines(text) if not is_excerpt(line)]
CODE = [(name, code) for name, text in PAGES.items() if name != "integrations.md" for code in python_blocks(text)]
"""tests/e2e/test_integrations.py runs the blocks of integrations.md with the packages that they need."""

NOT_RUN = {
    r"make ": "builds an environment, or runs all tests",
    r"source \.venv": "belongs to `make setup`",
    r"python -m benchmarks\.(pretraining|finetuning|inference) ": "measures for minutes",
    r"bertwright quickstart ": "takes over half a minute; tests/e2e/test_kill.py runs it",
    r"bertwright (import hub:|push )": "needs a network",
    r"bertwright evaluate .*--calibrate": "needs a model that is better than guessing; the tests of evaluate run it",
    r'bertwright generate gpt2 --prompt "The old bridge" --tokens': "needs a GPT-2; systems.md trains one",
    r"srun |ssh ": "needs several machines",
    r"bertwright .*s3://": "needs a bucket; tests/e2e/test_stores.py has a server of S3",
    r"pip ": "installs packages; `make release-check` does the same",
    r"python -m pytest tests/unit/tracking": "needs the packages of all trackers, and the source",
    r"docker |curl 127\.0\.0\.1:8080": "another program",
}
"""Beginning of a line → the reason why it is not run."""

DATA = {"sst2": "SST-2", "swag": "data/swag", "squad1": "data/squad", "ner": "names"}
INSTEAD: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (r" +#.*", ""),
    (r"\b(TEXT|INPUT)\.\.\.", r"\1"),
    (r"tokenizer train (?!.*--(?:vocab-size|kind)).*", r"\g<0> --vocab-size 500"),
    (r"\bTASK\b", "sst2"),
    (r"((?:finetune|evaluate) (\w+) .*--data) DIR", lambda match: f"{match[1]} {DATA[match[2]]}"),
    (r"mine=3$", "mine=3 --task-setting mine_margin=0"),  # all vectors of a model of three steps are close
    (r"--corpus mine=", "--corpus mixed="),  # that page's other `mine` are labelled tables
    (r"--held-out 0\S+", "--held-out 0.2"),
    (r"--recipe (\S+)(?!.* --(?:minutes|steps))", r"--recipe \1 --size tiny --steps 3"),
    (r" --checkpoints-by-words", ""),  # which needs a million words
    (r"--model run/words/\S+", "--model run"),
    (r"(--system modernbert .*)--start matching", r"\1--start local"),  # `tiny` has two layers
    (r"--batch-schedule \S+", "--batch-schedule 2:0.2,4:0.3,8:0.5"),  # it ends with the batch size of `ADDED`
    (r"(--model (?:tuned|MODEL) .*)--int8", r"\1--int8 --least-agreement 0"),
    (r"(--model minilm .*)--int8", r"\1--int8 --least-agreement 0 --least-overlap 0"),
    (r"benchmarks\.speedrun .*", r"\g<0> --any-pairs"),
    (r"--extend run (.*)--steps \d+", r"--extend run \1--epochs 1"),  # the run itself has 3 steps here
    (r"--seeds \d", "--seeds 1"),
    (r"epochs=3,10", "epochs=1"),
    (r"^curl -s", "curl -sf"),  # which an error of the service ends with 22
    (r" --device cuda", ""),  # which few machines have
    (r"finetune .*--features \S+", r"\g<0> --lstm-width 32"),
)
"""Parts of a line that are replaced here."""
SMALLER = {
    "tokenizer train": {"--vocab-size": "500", "--merges": "150"},
    "tokenizer extend": {"--add": "5"},
    "babylm": {"--words": "1k", "--size": "tiny", "--vocab-size": "500"},
    "corpus build": {"--words": "1k"},
    "pretrain": {"--steps": "3", "--minutes": "0.01", "--size": "tiny", "--words": "1k"},
    "finetune": {"--bilstm": "32"},
    "distill": {"--minutes": "0.01"},
}
"""Command → values that replace those of a page."""
ADDED = {
    "corpus build": {"--workers": "1"},
    "pretrain": {"--lengths": "32", "--batch-size": "8", "--evaluations": "1", "--threads": "1", "--precision": "fp32"},
    "babylm": {"--epochs": "1", "--lengths": "32", "--batch-size": "8", "--evaluations": "1", "--glue-rows": "6"},
    "finetune": {"--epochs": "1", "--batch-size": "16", "--max-length": "48", "--threads": "1", "--precision": "fp32"},
    "distill": {"--batch-size": "16", "--threads": "1", "--precision": "fp32"},
    "evaluate pretraining": {"--rows": "16", "--length": "32"},
    "doctor": {"--quick": None},
    "paper table5": {"--scale": "smoke", "--arms": "bert", "--tasks": "rte"},
    "paper using": {"--scale": "smoke", "--arms": "last", "--tasks": "sst2", "--seeds": "1"},
    "paper families": {
        **{"--scale": "smoke", "--arms": "bert", "--tasks": "rte", "--seeds": "1", "--pretraining-seeds": "1"},
        **{"--minutes": "0.01", "--rate-share": "0.5"},
    },
    "serve": {"--port": "0"},
    "demo": {"--port": "0", "--no-browser": None},
}
"""Command → options that replace a page's or are added to them."""
PUT = {
    "distillation.md": {"bertwright distill": {"tuned": "sst2"}},
    "export.md": {"": {"MODEL": "sst2"}},
    "faq.md": {"bertwright evaluate sst2": {"tuned": "sst2"}},
    "howto.md": {
        "bertwright evaluate sst2": {"tuned": "sst2"},
        "torchrun --nproc-per-node 2 -m bertwright pretrain": {"run": ""},
    },
}
"""Page → before which lines → name → the prepared thing (or none) that is put there, as the page means another one."""


def why_not(line: str) -> str:
    return next((reason for start, reason in NOT_RUN.items() if re.match(start, line)), "")


def test_the_list_of_what_is_not_run_is_true_and_short() -> None:
    for start in NOT_RUN:
        assert any(re.match(start, line) for _, line in LINES), f"no page prints {start} any more"
    for pattern, _ in INSTEAD:
        assert any(re.search(pattern, line) for _, line in LINES), f"no page prints {pattern} any more"
    for name, changes in PUT.items():
        for start in changes:
            assert any(page == name and line.startswith(start) for page, line in LINES), f"{name}: {start}"
    ours = [line for _, line in LINES if command(line)]
    left = [line for line in ours if why_not(line)]
    assert len(left) <= 0.2 * len(ours)
    assert len(ours) >= 120
    said = [
        f"{len(LINES)} lines, {len(CODE)} blocks of Python; {len(ours) - len(left)} of {len(ours)} commands are run"
    ]
    said += [f"{name}: {line[:60]}: {why_not(line)}" for name, line in LINES if why_not(line)]
    print("\n" + "\n".join(said))


def test_the_korean_readme_prints_the_same_commands() -> None:
    korean = (ROOT / "README.ko.md").read_text("utf-8")
    for kind in (shell_lines, python_blocks):
        english, other = ([re.sub(" +#.*", "", part) for part in kind(text)] for text in (PAGES["README.md"], korean))
        assert english == other


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({name for name, text in (*LINES, *CODE) if not why_not(text)}))
def test_a_page_does_what_it_prints(
    name: str, pages_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for thing in pages_folder.iterdir():
        Path(thing.name).symlink_to(thing)
    port = ""
    with ExitStack() as running:
        for line in [line for page, line in LINES if page == name and not why_not(line)]:
            for start, things in PUT.get(name, {}).items():
                for target, thing in things.items() if line.startswith(start) else ():
                    remove(Path(target))
                    if thing:
                        Path(target).symlink_to(pages_folder / thing)
            line = with_less(line)
            words = command(line)
            for path in outputs_of(words):
                remove(path)
            if words[:1] in (["serve"], ["demo"]):
                running.close()
                service, port = start_service(words, environment)
                running.callback(stop, service)
            elif line.startswith("bertwright "):
                assert main([word for pattern in words for word in sorted(glob(pattern)) or [pattern]]) == 0, line
            elif not line.startswith("curl ") or shutil.which("curl"):
                in_shell(line.replace("localhost:8000", f"localhost:{port}"), environment)
            assert all(path.exists() for path in outputs_of(words)), line
    known: dict[str, Any] = {"texts": ["a fine film", "a dull film"] * 4, "labels": ["good", "bad"] * 4}
    for code in [code for page, code in CODE if page == name]:
        exec(compile(code, name, "exec"), known)


def with_less(line: str) -> str:
    """The line with smaller numbers, and with things that are there."""
    for pattern, instead in INSTEAD:
        line = re.sub(pattern, instead, line)
    words = command(line)
    if not words or ENDS & {*shlex.split(line)}:
        return line
    ours = next((" ".join(words[:count]) for count in (2, 1) if " ".join(words[:count]) in {**SMALLER, **ADDED}), "")
    for option, value in SMALLER.get(ours, {}).items():
        if option in words:
            words[words.index(option) + 1] = value
    for option, value in ADDED.get(ours, {}).items():
        if option not in words:
            words += [option, value] if value else [option]
        elif value:
            words[words.index(option) + 1] = value
    return line[: line.index("bertwright ")] + shlex.join(["bertwright", *words])


def outputs_of(words: list[str]) -> list[Path]:
    """Return the outputs of a command, which must be removed before it runs."""
    changes_index = words[:1] == ["index"] and {"--add", "--remove", "--remove-ids", "--join", "--verify"} & {*words}
    if changes_index or {"--resume", "--plan"} & {*words} or words[:1] == ["paper"]:
        return []
    return [Path(value) for option, value in pairwise(words) if option in ("--out", "--output", "--errors")]


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """In which a shell finds this Python's programs, and the benchmarks."""
    return environment_with(tmp_path_factory.mktemp("bin"))


MADE = (
    "tokenizer train text.txt --vocab-size 500 --out tok",
    "corpus build text.txt --tokenizer tok --out corpus",
    "corpus build other.txt --tokenizer tok --out heldout",
    "corpus build domain --tokenizer tok --out wiki",
    "pretrain --corpus corpus --out run --steps 3",
    "pretrain --corpus corpus --out left --system bert-left --steps 3",
    "pretrain --corpus corpus --out right --system bert-right --steps 3",
    "pretrain --corpus corpus --out gptbert --system gpt-bert --steps 3",
    "join left right --out pair",
    "finetune sst2 --model run --data SST-2 --out sst2",
    "finetune classify --model run --data quickstart/task --text-column sentence --out quickstart/finetuned-pretrained",
    *(f"finetune {name} --model run --data tables/{name}.csv --out tuned-{name}" for name in TASKS),
)


@pytest.fixture(scope="module")
def pages_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of what the pages speak of, under their names."""
    folder = tmp_path_factory.mktemp("pages")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_texts()
        write_korean()
        write_tables()
        for line in MADE:
            assert main(shlex.split(with_less(f"bertwright {line}"))[1:]) == 0, line
        name_things()
        assert main(shlex.split("index articles.csv --model minilm --out articles")) == 0
    return folder
