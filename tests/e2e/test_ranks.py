"""Several processes on one machine give what one gives, and none is waited for in vain."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from bertwright.cli import main
from tests.support.folders import read_jsonl

SHARDINGS = ("ddp", "fsdp2")


def run_ranked(folder: Path, *options: str, processes: int = 1, restarts: int = 0) -> subprocess.CompletedProcess[str]:
    """`tests.support.ranked_run` in one process, or in several that torchrun starts."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    launcher += ["--max-restarts", str(restarts)]
    command = [
        sys.executable,
        *(launcher if processes > 1 else []),
        "-m",
        "tests.support.ranked_run",
        str(folder),
        *options,
    ]
    folder.mkdir(exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "BERTWRIGHT_TIMEOUT": "30"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)


def finished(folder: Path, *options: str, processes: int = 1, restarts: int = 0) -> dict[str, torch.Tensor]:
    """The weights of a run that came to its end."""
    done = run_ranked(folder, *options, processes=processes, restarts=restarts)
    assert done.returncode == 0, done.stderr[-3000:]
    return load_file(folder / "weights.safetensors")


def logged(folder: Path) -> list[dict[str, Any]]:
    return read_jsonl(folder / "run" / "metrics.jsonl")


def largest_difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, torch.Tensor]]:
    folder = tmp_path_factory.mktemp("alone")
    return folder, finished(folder)


@pytest.mark.parametrize(
    "sharding", [pytest.param(name, marks=() if name == "ddp" else pytest.mark.slow) for name in SHARDINGS]
)
def test_two_processes_train_what_one_trains(
    tmp_path: Path, alone: tuple[Path, dict[str, torch.Tensor]], sharding: str
) -> None:
    folder, weights = alone
    ended = finished(tmp_path, "--sharding", sharding, processes=2)
    assert largest_difference(weights, ended) < 1e-9
    mine, theirs = logged(folder), logged(tmp_path)
    assert [line["step"] for line in mine] == [line["step"] for line in theirs] == list(range(1, 51))
    for one, other in zip(mine, theirs, strict=True):
        for name in ("mlm", "nsp", "gradient_norm", "learning_rate"):
            assert other[name] == pytest.approx(one[name], abs=1e-9)


@pytest.mark.slow
def test_the_gradients_norm_over_shares_is_that_of_one_process_in_float32(tmp_path: Path) -> None:
    """The vocabulary is so large that torch's own norm of its gradient and that of its halves are 1.6e-5 apart."""
    options = ("--kind", "float32", "--vocab-size", "50000", "--steps", "2", "--sharding", "fsdp2")
    for processes in (1, 2):
        finished(tmp_path / str(processes), *options, processes=processes)
    one, two = ([line["gradient_norm"] for line in logged(tmp_path / str(count))] for count in (1, 2))
    assert two == pytest.approx(one, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("sharding", SHARDINGS)
def test_muon_sees_whole_matrices_where_each_process_holds_a_share(tmp_path: Path, sharding: str) -> None:
    options = ("--method", "muon", "--steps", "12", "--sharding", sharding)
    one, two = (finished(tmp_path / str(count), *options, processes=count) for count in (1, 2))
    assert largest_difference(one, two) < 1e-9
    assert largest_difference(one, finished(tmp_path / "adamw", "--steps", "12")) > 1e-2


@pytest.mark.slow
def test_three_processes_go_on_from_the_momentum_of_one(tmp_path: Path) -> None:
    """Three have uneven shares of the 16 rows of a matrix."""
    options = ("--method", "muon", "--steps", "12", "--rows-at-a-time", "2")
    whole = finished(tmp_path / "whole", *options)
    parts = tmp_path / "parts"
    assert run_ranked(parts, *options, "--until", "5").returncode == 0
    assert run_ranked(parts, *options, "--until", "8", "--sharding", "fsdp2", processes=3).returncode == 0
    assert largest_difference(whole, finished(parts, *options)) < 1e-9
    assert [line["step"] for line in logged(parts)] == list(range(1, 13))


@pytest.mark.slow
@pytest.mark.parametrize("sharding", SHARDINGS)
def test_masked_lm_alone_leaves_no_rank_waiting(tmp_path: Path, sharding: str) -> None:
    """The pooler has no gradient then."""
    weights = []
    for name, processes in (("one", 1), ("two", 2)):
        options = ("--second-sentence", "none", "--steps", "10", "--sharding", sharding)
        weights.append(finished(tmp_path / name, *options, processes=processes))
    assert largest_difference(*weights) < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize(
    ("system", "sharding"),
    [
        ("lstm-right", "fsdp2"),
        ("lstm-left", "ddp"),
        ("bert-left", "fsdp2"),
        ("bert-right", "ddp"),
        ("gpt", "fsdp2"),
        ("gpt", "ddp"),
        ("gpt-bert", "fsdp2"),
        ("gpt-bert", "ddp"),
        ("modernbert", "fsdp2"),
        ("modernbert", "ddp"),
    ],
)
def test_other_systems_train_alike_in_two_processes(tmp_path: Path, system: str, sharding: str) -> None:
    options = ("--system", system, "--steps", "12", "--sharding", sharding)
    alone, shared = (finished(tmp_path / str(count), *options, processes=count) for count in (1, 2))
    assert largest_difference(alone, shared) < 1e-9
    kept = [logged(tmp_path / str(count)) for count in (1, 2)]  # GPT-BERT has steps without a causal row
    losses = [[{name: line[name] for name in ("mlm", "nsp", "lm") if name in line} for line in lines] for lines in kept]
    assert losses[1] == [pytest.approx(one, abs=1e-9) for one in losses[0]]
    if system == "modernbert":
        assert losses[0][-1].keys() == {"mlm", "nsp"}
    elif system != "gpt-bert":  # few rows for each objective: steps differ by more than is learned in twelve
        assert losses[0][-1]["lm"] < losses[0][0]["lm"]


@pytest.mark.slow
@pytest.mark.parametrize("sharding", SHARDINGS)
def test_one_processs_checkpoint_is_continued_by_two_and_back(
    tmp_path: Path, alone: tuple[Path, dict[str, torch.Tensor]], sharding: str
) -> None:
    stopped = run_ranked(tmp_path, "--until", "12")
    assert stopped.returncode == 0, stopped.stderr
    assert run_ranked(tmp_path, "--until", "31", "--sharding", sharding, processes=2).returncode == 0
    assert 13 <= logged(tmp_path)[-1]["step"] < 50
    assert largest_difference(alone[1], finished(tmp_path)) < 1e-9
    assert [line["step"] for line in logged(tmp_path)] == list(range(1, 51))


@pytest.mark.parametrize("dying", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_a_lost_rank_is_named_and_a_restart_goes_on(
    tmp_path: Path, alone: tuple[Path, dict[str, torch.Tensor]], dying: int
) -> None:
    done = run_ranked(tmp_path, "--die", f"{dying}:17", processes=2)
    assert done.returncode != 0
    assert f"lost rank {dying}" in done.stderr
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-000000010"]
    assert largest_difference(alone[1], finished(tmp_path, processes=2)) < 1e-9


@pytest.mark.slow
def test_torchruns_own_restart_goes_on(tmp_path: Path, alone: tuple[Path, dict[str, torch.Tensor]]) -> None:
    ended = finished(tmp_path, "--die", "1:17", processes=2, restarts=1)
    assert largest_difference(alone[1], ended) < 1e-9
    assert [line["step"] for line in logged(tmp_path)] == list(range(1, 51))


@pytest.mark.slow
def test_a_signal_to_one_rank_stops_all_after_the_same_step(tmp_path: Path) -> None:
    done = run_ranked(tmp_path, "--until", "7", processes=2)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-000000008"]


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 3])
def test_micro_batches_that_do_not_divide_do_not_hang(
    tmp_path: Path, alone: tuple[Path, dict[str, torch.Tensor]], processes: int
) -> None:
    """Eight rows: one by one, and all at once, where all but one rank have nothing to do."""
    for rows in ("1", "8"):
        (tmp_path / rows).mkdir()
        ended = finished(tmp_path / rows, "--rows-at-a-time", rows, processes=processes)
        assert largest_difference(alone[1], ended) < 1e-9


WORKS_ALONE = """
import os, sys, time

from bertwright.cli import leave
from bertwright.errors import RunFailed
from bertwright.training.distributed import init_distributed

try:
    with init_distributed() as ranks:
        if ranks.is_main:
            time.sleep(6)
            if sys.argv[1] == "dies":
                os._exit(3)
        ranks.wait_for_main()
        print("rank", ranks.rank, "goes on", flush=True)
        if ranks.is_main:
            time.sleep(4)  # it writes the result alone
except RunFailed as error:
    print(error, flush=True)
    leave(1)
leave(0)
"""


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["lives", "dies"])
def test_ranks_wait_as_long_as_rank_zero_works_alone(tmp_path: Path, ending: str) -> None:
    """Without torchrun, which would end rank 1 itself."""
    (tmp_path / "alone.py").write_text(WORKS_ALONE)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    limit = {"BERTWRIGHT_TIMEOUT": "2" if ending == "lives" else "100"}
    begun = [
        subprocess.Popen(
            [sys.executable, "alone.py", ending],
            cwd=tmp_path,
            env={**os.environ, **address, **limit, "RANK": rank, "WORLD_SIZE": "2"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in "01"
    ]
    printed = [process.communicate(timeout=90)[0] for process in begun]
    if ending == "lives":
        assert [process.returncode for process in begun] == [0, 0]
        assert printed == ["rank 0 goes on\n", "rank 1 goes on\n"]
    else:
        assert [process.returncode for process in begun] == [3, 1]
        assert printed[0] == ""
        assert printed[1].startswith("rank 1 of 2: lost ")


LEAVES_LATE = """
import atexit, os, time
from contextlib import suppress

leads = os.environ["RANK"] == "0"
if leads:
    atexit.register(sum, range(10**8))  # the last of all: keeps the interpreter to itself for seconds

import torch
import torch.distributed as dist
from bertwright.cli import leave

dist.init_process_group("gloo")
time.sleep(0 if leads else 1)
work = dist.all_reduce(torch.zeros(1), async_op=True)
if leads:
    del work  # gloo alone holds the tensor now, and lets go of it while this process ends
else:
    with suppress(RuntimeError):  # the other one may be gone before this
        work.wait()
leave(0)
"""


@pytest.mark.slow
def test_a_rank_ends_well_while_gloo_still_holds_a_tensor(tmp_path: Path) -> None:
    """With `sys.exit` rank 0 is aborted here: "terminate called without an active exception"."""
    (tmp_path / "late.py").write_text(LEAVES_LATE)
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "late.py"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def run_in_processes(*arguments: object, processes: int) -> None:
    """`bertwright ARGUMENTS` in so many processes."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    line = [sys.executable, *launcher, "-m", "bertwright", *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "BERTWRIGHT_TIMEOUT": "60"}
    done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(done.stdout.splitlines()) <= 1, "more than one rank spoke"


@pytest.mark.slow
@pytest.mark.parametrize("sharding", SHARDINGS)
def test_the_commands_train_in_two_processes(tmp_path: Path, own_text: Path, sharding: str) -> None:
    assert main(["tokenizer", "train", str(own_text), "--vocab-size", "700", "--out", str(tmp_path / "tok")]) == 0
    build = ["corpus", "build", str(own_text), "--tokenizer", str(tmp_path / "tok"), "--out", str(tmp_path / "corpus")]
    assert main([*build, "--workers", "1"]) == 0
    train = ["pretrain", "--corpus", tmp_path / "corpus", "--steps", "8", "--lengths", "32", "--batch-size", "8"]
    train += "--held-out 0.2 --evaluations 2 --log-every 1 --dropout 0 --precision fp32 --json".split()
    losses = []
    for processes, name in ((1, "one"), (2, "two")):
        out = tmp_path / name
        if processes == 1:
            assert main([*map(str, train), "--out", str(out)]) == 0
        else:
            run_in_processes(*train, "--out", out, "--sharding", sharding, processes=processes)
        lines = read_jsonl(out / "metrics.jsonl")
        losses.append([line["mlm"] + line["nsp"] for line in lines if "mlm" in line])
        losses[-1] += [line["held_out"]["mlm_loss"] for line in lines if "held_out" in line]
    assert losses[1] == pytest.approx(losses[0], abs=1e-4)
    assert main(["fill", "one [MASK] two", "--model", str(tmp_path / "two")]) == 0
    (tmp_path / "rows.tsv").write_text(
        "sentence\tlabel\n" + "".join(f"row {number} is {number % 2}\t{number % 2}\n" for number in range(60))
    )
    tune = [
        "finetune",
        "sst2",
        "--model",
        tmp_path / "two",
        "--data",
        tmp_path / "rows.tsv",
        "--out",
        tmp_path / "task",
    ]
    run_in_processes(*tune, "--epochs", "2", "--batch-size", "8", "--sharding", sharding, "--json", processes=2)
    assert json.loads((tmp_path / "task" / "run.json").read_text())["finished"]
    assert main(["evaluate", "sst2", "--model", str(tmp_path / "task"), "--data", str(tmp_path / "rows.tsv")]) == 0
