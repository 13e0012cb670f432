"""The completion scripts: what bash offers as it is typed, and that no option of any command is missing."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bertwright.cli import main
from bertwright.commands import COMMANDS


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


def last_words(typed: str) -> set[str]:
    """Return the last words of the commands that begin with `typed`."""
    return {name.split()[-1] for name in COMMANDS if name.startswith(typed)}


def offered(script_text: str, typed: str, folder: Path) -> list[str]:
    """Return the completions of the last word; if there are none, bash completes files."""
    (folder / ".completion").write_text(script_text)
    words = typed.split(" ")
    ask = f"COMP_WORDS=({' '.join(words[:-1])} '{words[-1]}') COMP_CWORD={len(words) - 1}"
    lines = f'source .completion; {ask}; _tyro_bertwright; printf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", lines], capture_output=True, text=True, cwd=folder, timeout=60)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return [line for line in done.stdout.split("\n") if line]


def test_bash_offers_commands_options_and_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bash_script = script("bash", capsys)
    (tmp_path / "model").mkdir()
    for typed, wanted in [
        ("bertwright pre", last_words("pre")),
        ("bertwright corpus ", last_words("corpus ")),
        ("bertwright score s", last_words("score s")),
        ("bertwright export ", last_words("export ")),
        ("bertwright export onnx --red", ["--reduce-range"]),
        ("bertwright predict --in", ["--input", "--input-format"]),
        ("bertwright pretrain --corpus wiki --l", ["--learning-rate", "--lengths", "--log-every"]),
        ("bertwright pretrain --system g", ["gpt", "gpt-bert", "gpt2"]),
        ("bertwright corpus build text.txt --wo", ["--words", "--workers"]),
        ("bertwright corpus build --documents ", ["blank-lines", "lines", "file"]),
        ("bertwright predict --raw --input-format ", ["auto", "csv", "tsv", "jsonl", "parquet", "lines"]),
        ("bertwright predict --precision b", ["bf16"]),
        ("bertwright predict --input mo", []),
        ("bertwright serve --model mo", []),
        ("bertwright runs mo", []),
        ("bertwright corpus inspect ", []),
        ("bertwright completion zsh --", ["--json", "--help"]),
        ("bertwright nonsense mo", []),
    ]:
        assert sorted(offered(bash_script, typed, tmp_path)) == sorted(wanted), typed
    complete = subprocess.check_output(["bash", "-c", "source .completion; complete -p bertwright"], cwd=tmp_path)
    assert b"-o default" in complete


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_no_command_and_no_option_is_missing(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The names are those that the help of each command lists."""
    text = re.search(r"^ *(?:set -l pycode \")?.*COMPLETION_SPEC = (.*)$", script(shell, capsys), re.M)
    assert text
    spec: dict[str, Any] = eval(text[1].replace('\\"', '"').replace("\\\\", "\\"))
    for name in COMMANDS:
        entry = spec
        for word in name.split():
            entry = entry["subcommands"][word]
        with pytest.raises(SystemExit):
            main([*name.split(), "--help"])
        names = re.findall(r"^\W (?:-h, )?(--[a-z0-9-]+(?:, --no-[a-z-]+)?)", capsys.readouterr().out, re.M)
        listed = {flag for name in names for flag in name.split(", ")}
        flags = {flag for option in entry["options"] for flag in option["flags"] if flag.startswith("--")}
        assert flags == {*listed, "--json"}, name


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shells_accept_the_scripts(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "script").write_text(script(shell, capsys))
    completed = subprocess.run([shell, "-n", tmp_path / "script"], capture_output=True, text=True, timeout=60)
    assert (completed.returncode, completed.stderr) == (0, "")


def test_fish_offers_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if not shutil.which("fish"):
        pytest.skip("fish is not installed")
    (tmp_path / "script").write_text(script("fish", capsys))
    for typed, wanted in [
        ("bertwright corpus ", last_words("corpus ")),
        ("bertwright predict --input-f", {"--input-format"}),
        ("bertwright predict --precision ", {"auto", "fp32", "bf16", "int8"}),
    ]:
        lines = f"source script; complete -C '{typed}'"
        offered_words = subprocess.check_output(["fish", "-c", lines], text=True, cwd=tmp_path, timeout=60)
        assert {line.split("\t")[0] for line in offered_words.splitlines()} == wanted


def test_fish_passes_the_word_that_is_completed(capsys: pytest.CaptureFixture[str]) -> None:
    assert '"$pycode" $words (commandline -ct) $current)' in script("fish", capsys)


def test_another_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["completion", "tcsh"])
    assert "'bash', 'zsh'" in capsys.readouterr().err
