"""The completion scripts: what bash offers as it is typed, and that no option of any command is missing."""

import importlib
import re
import shutil
import subprocess
import warnings
from pathlib import Path

import pytest
import tyro

from bertwright.cli import _COMMANDS, main


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


def offered(given: str, typed: str, folder: Path) -> list[str]:
    """What bash itself offers for the last of the words."""
    (folder / ".completion").write_text(given)
    words = typed.split(" ")
    ask = f"COMP_WORDS=({' '.join(words[:-1])} '{words[-1]}') COMP_CWORD={len(words) - 1}"
    lines = f'source .completion; {ask}; _bertwright; printf "%s\\n" "${{COMPREPLY[@]}}"'
    found = subprocess.run(["bash", "-c", lines], capture_output=True, text=True, cwd=folder, timeout=60)
    assert (found.returncode, found.stderr) == (0, ""), found.stderr
    return [line for line in found.stdout.split("\n") if line]


def test_bash_offers_commands_options_and_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = script("bash", capsys)
    (tmp_path / "my rows.tsv").write_text("")
    (tmp_path / "model").mkdir()
    for typed, wanted in [
        ("bertwright pre", ["pretrain", "predict"]),
        ("bertwright --v", ["--version"]),
        ("bertwright corpus ", ["build", "merge", "inspect", "verify"]),
        ("bertwright score s", ["squad"]),
        ("bertwright predict --in", ["--input", "--input-format"]),
        ("bertwright corpus build text.txt --wo", ["--workers"]),
        ("bertwright corpus build --documents ", ["blank-lines", "lines", "file"]),
        ("bertwright predict --raw --input-format ", ["auto", "csv", "tsv", "jsonl", "parquet", "lines"]),
        ("bertwright predict --precision b", ["bf16"]),
        ("bertwright predict --input my", ["my rows.tsv"]),
        ("bertwright predict --model m", ["my rows.tsv", "model"]),
        ("bertwright runs mo", ["model"]),
        ("bertwright corpus inspect mo", ["model"]),
        ("bertwright completion ", ["bash", "zsh", "fish"]),
        ("bertwright completion zsh --", ["--json", "--help"]),
        ("bertwright nonsense mo", ["model"]),
        ("bertwright nonsense --", []),
    ]:
        assert sorted(offered(given, typed, tmp_path)) == sorted(wanted), typed
    ask = "source .completion; complete -p bertwright"
    assert b"_bertwright bertwright" in subprocess.check_output(["bash", "-c", ask], cwd=tmp_path)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_no_command_and_no_option_is_missing(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The names are those that the parser of the command line takes."""
    given = script(shell, capsys)
    settings = (tyro.conf.FlagCreatePairsOff, tyro.conf.HelptextFromCommentsOff, tyro.conf.DisallowNone)
    for name, (place, _) in _COMMANDS.items():
        if name == "completion":
            continue
        module, function = place.split(".")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            called = getattr(importlib.import_module(f"bertwright.commands.{module}"), function)
            parser = tyro.extras.get_parser(called, config=settings)
        options = {text for action in parser._actions for text in action.option_strings if text.startswith("--")}
        if shell == "bash":
            found = re.search(rf'^ *"{name}"\) options="([^"]*)"', given, re.MULTILINE)
        elif shell == "zsh":
            found = re.search(rf"^ *'{name}'\) _arguments (.*) ;;$", given, re.MULTILINE)
        else:
            own = re.findall(rf"__bertwright_in {name}' -l ([a-z0-9-]+)", given)
            assert {f"--{option}" for option in own} == {*options, "--json"}, name
            continue
        assert found, name
        assert set(re.findall(r"--[a-z0-9-]+", found[1])) == {*options, "--json"}, name


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shells_accept_the_scripts(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "script").write_text(script(shell, capsys))
    found = subprocess.run([shell, "-n", tmp_path / "script"], capture_output=True, text=True, timeout=60)
    assert (found.returncode, found.stderr) == (0, "")


def test_fish_offers_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if not shutil.which("fish"):
        pytest.skip("fish is not installed")
    (tmp_path / "script").write_text(script("fish", capsys))
    for typed, wanted in [
        ("bertwright corpus ", {"build", "merge", "inspect", "verify"}),
        ("bertwright predict --input-f", {"--input-format"}),
        ("bertwright predict --precision ", {"auto", "fp32", "bf16", "int8"}),
    ]:
        lines = f"source script; complete -C '{typed}'"
        found = subprocess.check_output(["fish", "-c", lines], text=True, cwd=tmp_path, timeout=60)
        assert {line.split("\t")[0] for line in found.splitlines()} == wanted


def test_another_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["completion", "tcsh"])
    assert "'bash', 'zsh'" in capsys.readouterr().err
