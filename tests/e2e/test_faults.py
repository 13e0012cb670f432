"""Whatever comes in between, the state on disk is a good one, and going on ends in the bytes of an undisturbed run.

Commands are killed just before each of the changes that they make to files, and at moments of the clock; the disk is
full at each size; files are cut and flipped. A few of each in every test run, many in the slow tests, which print a
table of what was tried.
"""

import json
import random
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from bertwright.cli import main
from tests.support import faults

TIMED = {"seconds", "data_share", "tokens_per_second", "mfu"}


@dataclass(frozen=True)
class Stage:
    """A command, the folder that it fills, and the files in it that an undisturbed run would have left alike."""

    name: str
    arguments: Callable[[Path], list[str]]
    """Folder → arguments of the command."""
    again: tuple[str, ...]
    """Added when it is started again."""
    files: Callable[[Path], dict[str, Any]]


def folder_files(folder: Path) -> dict[str, Any]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def untimed_lines(run: Path) -> list[dict[str, Any]]:
    """Return the lines of metrics.jsonl without measured times."""
    text = (run / "metrics.jsonl").read_text().splitlines()
    return [{name: value for name, value in json.loads(line).items() if name not in TIMED} for line in text]


def run_files(run: Path) -> dict[str, Any]:
    contents: dict[str, Any] = {
        str(path.relative_to(run)): path.read_bytes() for path in sorted((run / "model").iterdir()) if path.is_file()
    }
    for log in sorted(run.rglob("metrics.jsonl")):
        contents[str(log.relative_to(run))] = untimed_lines(log.parent)
    left = [str(path) for path in run.rglob(".*") if path.name != ".lock"]
    assert not left, left
    return contents


def planned_files(run: Path) -> dict[str, Any]:
    plans = run.parent / "corpus" / "plans"
    left = [str(path) for path in plans.rglob(".*")]
    assert not left, left
    return run_files(run) | {path.name: path.read_bytes() for path in plans.iterdir()}


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory, own_text: Path) -> dict[str, Stage]:
    """Building a corpus, planning its epochs, pre-training on one, fine-tuning, writing for ONNX Runtime."""
    folder = tmp_path_factory.mktemp("stages")
    assert main(["tokenizer", "train", str(own_text), "--vocab-size", "700", "--out", str(folder / "tok")]) == 0
    text = folder / "text.txt"
    text.write_text("\n\n".join([own_text.read_text()] * 6))
    build = ["corpus", "build", str(text), "--tokenizer", str(folder / "tok"), "--workers", "1"]
    assert main([*build, "--out", str(folder / "corpus")]) == 0
    rows = [f"{word} number {number}\t{number % 2}" for number in range(60) for word in ("even", "odd")]
    (folder / "rows.tsv").write_text("sentence\tlabel\n" + "\n".join(rows) + "\n")
    train = ["pretrain", "--size", "2x128", "--batch-size", "4", "--log-every", "1"]
    both = ["--lengths", "16:0.5,32:0.5"]
    common = ["--learning-rate", "1e-3", "--threads", "1", "--precision", "fp32"]
    after_each = ["--save-minutes", "1e-6"]  # a checkpoint after each step
    long = ["--steps", "12", "--held-out", "0.2", "--evaluations", "2", "--corpus", str(folder / "corpus"), *after_each]
    tune = ["finetune", "sst2", "--data", str(folder / "rows.tsv"), "--model", "random:tiny", "--epochs", "2"]
    tune += [
        "--tokenizer",
        str(folder / "tok"),
        *"--batch-size 8 --threads 1 --precision fp32 --seeds 2 --max-length 16".split(),
    ]
    once = ["--steps", "1", "--evaluations", "0"]
    assert main([*train, *both, *common, *once, "--corpus", str(folder / "corpus"), "--out", str(folder / "run")]) == 0

    def plan(out: Path) -> list[str]:
        """A training on a corpus of its own, whose epochs nothing has planned yet; it has rows enough for a file."""
        if not (folder / "large").exists():
            documents = own_text.read_text().split("\n\n")
            lines = (f"Number {number}. {document}" for number in range(1000) for document in documents)
            (folder / "large.txt").write_text("\n\n".join(lines))
            several = [*build[:2], str(folder / "large.txt"), *build[3:], "--out", str(folder / "large")]
            assert main(several) == 0
        corpus = out.parent / "corpus"
        if not corpus.exists():
            shutil.copytree(folder / "large", corpus)
        return [*train, "--lengths", "16", *common, *once, "--corpus", str(corpus), "--out", str(out)]

    def export(out: Path) -> list[str]:
        return ["export", "onnx", "--model", str(folder / "run"), "--out", str(out)]

    return {
        "corpus": Stage("corpus", lambda out: [*build, "--out", str(out)], (), folder_files),
        "planning": Stage("planning", plan, ("--resume",), planned_files),
        "pre-training": Stage(
            "pre-training", lambda out: [*train, *both, *common, *long, "--out", str(out)], ("--resume",), run_files
        ),
        "fine-tuning": Stage("fine-tuning", lambda out: [*tune, "--out", str(out)], ("--resume",), run_files),
        "export": Stage("export", export, (), folder_files),
    }


Calm = Callable[[str], tuple[dict[str, Any], int]]


@pytest.fixture(scope="module")
def calm(stages: dict[str, Stage], tmp_path_factory: pytest.TempPathFactory) -> Calm:
    """By stage: what an undisturbed run leaves, and the changes that it makes."""

    @cache
    def ran(name: str) -> tuple[dict[str, Any], int]:
        folder = tmp_path_factory.mktemp(f"calm-{name}")
        ended = faults.run(stages[name].arguments(folder / "out"), folder)
        assert ended.code == 0, ended.said
        return stages[name].files(folder / "out"), ended.changes

    return ran


def differing(contents: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """The files that are not alike, by name: pytest takes a quarter of an hour to show how megabytes differ."""
    return sorted(name for name in contents.keys() | expected.keys() if contents.get(name) != expected.get(name))


def redone(run: Path) -> int:
    """Steps that were logged before the run was killed and are computed again."""
    log = run / "metrics.jsonl"
    whole = [line for line in log.read_text().splitlines(keepends=True) if line.endswith("\n")] if log.exists() else []
    logged = max((json.loads(line)["step"] for line in whole), default=0)
    saved = [int(path.name.removeprefix("step-")) for path in run.glob("checkpoints/step-*")]
    return logged - max(saved, default=0)


def is_whole(out: Path) -> bool:
    """Return True if the folder of a corpus or an export is complete."""
    return out.is_dir() and any(out.iterdir()) and not (out / ".building").exists()


def killed_and_resumed(stage: Stage, folder: Path, expected: dict[str, Any], **hurt: Any) -> dict[str, int]:
    """Kill once, start again, compare every byte; {"killed", "redone"}."""
    out = folder / "out"
    ended = faults.run(stage.arguments(out), folder, **hurt)
    assert ended.was_killed or ended.code == 0, ended.said
    again = redone(out) if stage.name == "pre-training" and ended.was_killed and out.exists() else 0
    is_made = not stage.again and (ended.code == 0 or is_whole(out))  # killed on its way out: not made twice
    more = faults.run([*stage.arguments(out), *stage.again], folder)
    if not is_made:
        assert more.code == 0, more.said
    assert not differing(stage.files(out), expected), (stage.name, hurt)
    assert not list(folder.rglob(".*.bw-*"))
    shutil.rmtree(folder)
    folder.mkdir()
    return {"killed": int(ended.was_killed), "redone": again}


def instants(changes: int, count: int, seed: int) -> Sequence[int]:
    """So many of the changes, the first and the last ones always among them, and the exit after the last one."""
    return [1, 2, changes, changes + 1, *sorted(random.Random(seed).sample(range(3, changes), count - 4))]


@pytest.mark.parametrize(
    ("name", "count"),
    [("corpus", 4), ("pre-training", 1), pytest.param("fine-tuning", 2, marks=pytest.mark.slow)],
)
def test_a_kill_before_any_change_of_a_file_loses_nothing(
    name: str, count: int, stages: dict[str, Stage], calm: Calm, tmp_path: Path
) -> None:
    expected, changes = calm(name)
    killed = [
        killed_and_resumed(stages[name], tmp_path, expected, die_before=change)["killed"]
        for change in random.Random(11).sample(range(1, changes + 1), count)
    ]
    assert sum(killed) == count


@pytest.mark.parametrize(
    "name",
    [
        "corpus",
        "pre-training",
        "fine-tuning",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("planning", "export")),
    ],
)
def test_a_kill_after_the_last_change_leaves_the_whole(
    name: str, stages: dict[str, Stage], calm: Calm, tmp_path: Path
) -> None:
    expected, changes = calm(name)
    assert killed_and_resumed(stages[name], tmp_path, expected, die_before=changes + 1)["killed"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "count"), [("corpus", 25), ("planning", 20), ("pre-training", 50), ("fine-tuning", 25), ("export", 6)]
)
def test_many_kills_before_changes_of_files(
    name: str, count: int, stages: dict[str, Stage], calm: Calm, tmp_path: Path
) -> None:
    expected, changes = calm(name)
    kills = [
        killed_and_resumed(stages[name], tmp_path, expected, die_before=change)
        for change in instants(changes, count, seed=1)
    ]
    tell(f"{name}, killed before one of {changes} changes of files", kills)
    assert sum(one["killed"] for one in kills) == len(kills)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["corpus", "pre-training", "fine-tuning"])
def test_many_kills_by_the_clock(name: str, stages: dict[str, Stage], calm: Calm, tmp_path: Path) -> None:
    moments = random.Random(2)
    expected, _ = calm(name)
    begin = time.monotonic()
    assert faults.run(stages[name].arguments(tmp_path / "out"), tmp_path).code == 0
    whole = time.monotonic() - begin
    shutil.rmtree(tmp_path / "out")
    kills = [
        killed_and_resumed(stages[name], tmp_path, expected, die_after=moments.uniform(0.02, 0.8) * whole)
        for _ in range(8)
    ]
    tell(f"{name}, killed by the clock", kills)
    assert any(one["killed"] for one in kills)


@pytest.mark.parametrize(
    "name", ["corpus", *(pytest.param(name, marks=pytest.mark.slow) for name in ("pre-training", "fine-tuning"))]
)
def test_a_full_disk_is_reported_and_loses_nothing(
    name: str, stages: dict[str, Stage], calm: Calm, tmp_path: Path
) -> None:
    assert fill_the_disk(stages[name], tmp_path, calm(name)[0], sizes=(0, 400_000)) >= 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["corpus", "pre-training", "fine-tuning"])
def test_a_disk_full_at_many_sizes(name: str, stages: dict[str, Stage], calm: Calm, tmp_path: Path) -> None:
    sizes = [0, *(4**step for step in range(11))]
    refused = fill_the_disk(stages[name], tmp_path, calm(name)[0], sizes=sizes)
    print(f"\n| {name}, the disk full at {len(sizes)} sizes | {len(sizes)} | {refused} | all {len(sizes)} | |")


def fill_the_disk(stage: Stage, folder: Path, expected: dict[str, Any], *, sizes: Sequence[int]) -> int:
    """Return how often the command failed on a full disk; it reports that, and goes on once there is room."""
    refused = 0
    for size in sizes:
        out = folder / "out"
        ended = faults.run(stage.arguments(out), folder, largest_file=size)
        assert "Traceback" not in ended.said, (size, ended.said)
        if ended.code != 0:
            refused += 1
            assert ended.code in (1, 2), (size, ended)
            assert "too large" in ended.said or "disk full" in ended.said or "No space" in ended.said, (
                size,
                ended.said,
            )
            more = faults.run([*stage.arguments(out), *(stage.again if out.exists() else ())], folder)
            assert more.code == 0, (size, more.said)
        assert not differing(stage.files(out), expected), size
        shutil.rmtree(folder)
        folder.mkdir()
    return refused


def test_a_folder_that_cannot_be_written_is_reported(stages: dict[str, Stage], tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.write_text("a file where a folder is to be")
    for stage in (stages[name] for name in stages if name != "planning"):
        ended = faults.run(stage.arguments(closed / "out"), tmp_path)
        assert ended.code in (1, 2)
        assert "Traceback" not in ended.said
        assert str(closed) in ended.said, ended.said


def damaged(path: Path, how: int) -> None:
    """Cut it (how < 0) or flip the bit at that share of it, in 1/1000."""
    data = bytearray(path.read_bytes())
    if how < 0:
        path.write_bytes(data[: len(data) // 2])
    else:
        position = min(len(data) - 1, len(data) * how // 1000)
        data[position] ^= 1 << (how % 8)
        path.write_bytes(bytes(data))


@pytest.mark.parametrize(
    "file", [pytest.param("optimizer.safetensors", marks=pytest.mark.slow), "model.safetensors", "state.json"]
)
@pytest.mark.parametrize("how", [200, *(pytest.param(how, marks=pytest.mark.slow) for how in (-1, 3, 998))])
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(
    file: str, how: int, stages: dict[str, Stage], calm: Calm, tmp_path: Path
) -> None:
    stage, (expected, changes) = stages["pre-training"], calm("pre-training")
    out = tmp_path / "out"
    assert faults.run(stage.arguments(out), tmp_path, die_before=changes * 2 // 3).was_killed
    newest = sorted(out.glob("checkpoints/step-*"))[-1]
    damaged(newest / file, how)
    more = faults.run([*stage.arguments(out), "--resume"], tmp_path)
    assert more.code == 0, more.said
    assert f"{newest / file} is damaged" in more.said
    assert not differing(stage.files(out), expected)


@pytest.mark.slow
@pytest.mark.parametrize("how", [377, -1, 1, 130, 500, 999])
def test_a_damaged_corpus_is_named(how: int, stages: dict[str, Stage], calm: Calm, tmp_path: Path) -> None:
    """Each of its files; what is no part of a training's input may be damaged without harm."""
    stage = stages["pre-training"]
    arguments = stage.arguments(tmp_path / "out")
    corpus = Path(arguments[arguments.index("--corpus") + 1])
    refused = 0
    for file in sorted(path for path in corpus.rglob("*") if path.is_file() and "plans" not in path.parts):
        copy = tmp_path / "corpus"
        shutil.copytree(corpus, copy)
        broken = copy / file.relative_to(corpus)
        damaged(broken, how)
        arguments[arguments.index("--corpus") + 1] = str(copy)
        ended = faults.run(arguments, tmp_path)
        assert "Traceback" not in ended.said, (file, ended.said)
        if ended.code == 0:
            contents, expected = (dict(files) for files in (stage.files(tmp_path / "out"), calm("pre-training")[0]))
            for files in (contents, expected):
                del files["model/tokenizer_config.json"]  # copied as it is for other programs; nothing here reads it
            assert not differing(contents, expected), file
        else:
            refused += 1
            assert ended.code == 2, (file, ended)
            assert str(copy) in ended.said, (file, ended.said)
        shutil.rmtree(copy)
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
    assert refused >= 2  # the manifest and a shard at least


def tell(name: str, kills: Sequence[dict[str, int]]) -> None:
    """A line of the table; `pytest -s` shows it."""
    killed, again = sum(one["killed"] for one in kills), max(one["redone"] for one in kills)
    print(f"\n| {name} | {len(kills)} | {killed} | all {len(kills)} | {again} |")
