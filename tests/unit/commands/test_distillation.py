"""Distill on the command line: options of its two uses, and refusals before any work."""

from pathlib import Path

import pytest

from bertwright.cli import main

TEACHER = "distill --teacher small-wiki --out run"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--layers 2", "expected --data FOLDER, for the teacher's task, or --corpus FOLDER, to pre-train"),
        ("--layers 2 --data d --corpus c", "expected --data FOLDER, for the teacher's task, or --corpus FOLDER"),
        ("--data d", "expected the shape of the student: give either --size or --layers"),
        ("--data d --size tiny --layers 2", "give either --size or --layers"),
        ("--data d --layers 2 --soft-weight 1.5", "--soft-weight 1.5: Input should be less than or equal to 1"),
        ("--data d --layers 2 --held-out 0.1", "--held-out 0.1: is for --corpus"),
        ("--corpus c --layers 2 --texts t.txt", "distill --corpus: reads a corpus; leave --texts"),
        ("--data d --layers 2", "small-wiki: not a fine-tuned model; run: bertwright finetune"),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(
    arguments: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(f"{TEACHER} {arguments}".split()) == 2
    assert words in " ".join(capsys.readouterr().err.split())
    assert not Path("run").exists()


def test_the_options_are_those_of_the_use(capsys: pytest.CaptureFixture[str]) -> None:
    shown = []
    for arguments in ([], ["--corpus", "c"], ["--corpus=c"]):
        with pytest.raises(SystemExit):
            main(["distill", *arguments, "--help"])
        shown.append(capsys.readouterr().out)
    assert shown[1] == shown[2]
    for option, is_shown in {
        "--temperature": (True, True),
        "--layers": (True, True),
        "--epochs": (True, True),
        "--steps": (False, True),
        "--lengths": (False, True),
        "--bilstm": (False, False),
        "--system": (False, False),
        "--second-sentence": (False, False),
        "--batch-schedule": (False, True),
        "--z-loss": (False, False),
    }.items():
        assert (f"{option} " in shown[0], f"{option} " in shown[1]) == is_shown, option
