"""URLs among the arguments of commands: paths of copies, or one sentence where a command takes none."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from bertwright.cli import main
from bertwright.commands import COMMANDS, load_command
from bertwright.commands.serving import _named
from bertwright.commands.urls import with_urls
from bertwright.errors import InputError
from bertwright.stores.cache import fetch_model
from bertwright.training.remote_run import working_folder
from tests.support.commands import run_json
from tests.support.stores import FaultyStore, keys, put, put_folder


def arguments_of(command: str, **options: Any) -> dict[str, Any]:
    """The arguments that reach the function of a command."""

    def caught(
        *,
        model: Any = None,
        data: Any = None,
        corpus: Any = (),
        mix: Any = (),
        out: Any = None,
        output: Any = None,
        text: Any = None,
        index: Any = (),
        rerank: Any = None,
    ) -> dict[str, Any]:
        return dict(locals())

    return dict(with_urls(command, caught)(**options))


def test_each_option_gets_a_copy_of_what_it_reads(store: Any, own_corpus: Path) -> None:
    put("b/m/config.json", b"{}")
    put("b/day=7/rows.tsv", b"x")
    put_folder(own_corpus, "b/corpus")
    options = arguments_of(
        "serve",
        model=("tuned=faulty://b/m", "faulty://b/m", "small-wiki", "random:tiny"),
        data=Path("faulty://b/day=7"),
        corpus=("faulty://b/corpus=0.7", "other=0.3"),
        text="see faulty://b/m",
        rerank="faulty://b/m",
    )
    tuned, plain, *names = options["model"]
    assert tuned == f"tuned={plain}"
    assert (Path(plain) / "config.json").read_bytes() == b"{}"
    assert names == ["small-wiki", "random:tiny"]
    assert (options["data"] / "rows.tsv").read_bytes() == b"x"
    folder, _, weight = options["corpus"][0].rpartition("=")
    assert ((Path(folder) / "manifest.json").is_file(), weight, options["corpus"][1]) == (True, "0.7", "other=0.3")
    assert (options["text"], options["rerank"]) == ("see faulty://b/m", plain)


@pytest.mark.parametrize(
    ("command", "options", "message"),
    [
        (
            "index",
            {"out": Path("s3://b/index")},
            "--out s3://b/index: expected a path of this machine; 'index' takes no",
        ),
        ("predict", {"output": "s3://b/x.tsv"}, "--output s3://b/x.tsv: .*; copy the result to the store afterwards"),
        ("paper", {"corpus": ("s3://b/text",)}, "--corpus s3://b/text: .*; copy it to this machine first"),
        ("serve", {"index": ("s3://b/i",)}, "--index s3://b/i: .*; copy it to this machine first"),
        ("babylm", {"mix": ("s3://b/text=0.5",)}, "--mix s3://b/text=0.5: .*; copy it to this machine first"),
        ("babylm", {"mix": ("wiki=s3://b/text=0.5",)}, "--mix s3://b/text=0.5: .*; copy it to this machine first"),
    ],
)
def test_where_a_url_is_not_possible_one_sentence_says_so(command: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        arguments_of(command, **options)


def test_a_positional_argument_is_named_as_the_help_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, begin in (
        (["report", "s3://b/run"], "RUN s3://b/run: "),
        (["tokenizer", "import", "s3://b/vocab.txt", "--out", "x"], "VOCABULARY s3://b/vocab.txt: "),
        (["import", "s3://b/x", "--out", "x"], "SOURCE s3://b/x: "),
        (["import", "HTTP://b/x?sig=SECRET", "--out", "x"], "SOURCE HTTP://b/x: "),
    ):
        assert main(arguments) == 2
        message = capsys.readouterr().err
        assert message.startswith(f"bertwright: {begin}")
        assert "takes no URL here; copy it to this machine first" in message


def test_a_plan_names_the_bytes_of_the_copies(store: Any, own_corpus: Path) -> None:
    """The run folder of a plan is on this machine, and nothing is written to the store."""
    put_folder(own_corpus, "b/corpus")
    url = "faulty://b/corpus"

    def planned(*, corpus: tuple[str, ...], out: Path, plan: bool) -> dict[str, Any]:
        return {"text": "  disk     1 MB", "folder": out}

    result = with_urls("pretrain", planned)(corpus=(f"{url}=2",), out=Path("faulty://b/run"), plan=True)
    size = sum(len(FaultyStore.store[f"/{key}"].getvalue()) for key in keys("b/corpus") if "/plans/" not in key)
    assert (result["cache"], result["folder"]) == ({url: size}, working_folder("faulty://b/run"))
    assert result["text"].splitlines()[-1].startswith(f"  cache    {size / 1e6:.1f} MB of {url} in /")
    assert not keys("b/run")


@pytest.mark.parametrize("option", [{"grid": "paper"}, {"search": 3}, {"search_minutes": 2.0}])
def test_a_search_over_settings_has_no_run_in_a_store(store: Any, option: dict[str, Any]) -> None:
    def finetune(*, out: Path, grid: Any = None, search: Any = None, search_minutes: Any = None) -> dict[str, Any]:
        raise AssertionError

    with pytest.raises(InputError, match="--out faulty://b/run: --grid and --search need an --out on this machine"):
        with_urls("finetune", finetune)(out=Path("faulty://b/run"), **option)
    assert not keys()


WRITTEN = [
    (name, option)
    for name in COMMANDS
    for option in inspect.signature(load_command(name)).parameters
    if option in ("out", "output", "errors")
]
"""Commands and their options of a file or folder that is written."""


def test_each_option_that_is_written_is_tried() -> None:
    assert {option for _, option in WRITTEN} == {"out", "output", "errors"}


@pytest.mark.parametrize(("name", "option"), WRITTEN)
def test_no_command_writes_into_a_folder_that_is_named_as_a_url(
    name: str, option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each option of a file or folder that is written takes a store, or refuses a URL with one sentence."""
    monkeypatch.chdir(tmp_path)
    parameters = inspect.signature(load_command(name)).parameters
    values = {
        parameter.name: parameter.default if parameter.default is not parameter.empty else "x"
        for parameter in parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    positional = ["x" for parameter in parameters.values() if parameter.kind is parameter.POSITIONAL_ONLY]
    url = "nosuch://b/x"
    value = Path(url) if "Path" in str(parameters[option].annotation) else url
    message = f"--{option} {url}: expected a path of this machine; '{name}' takes no URL here"
    if name in ("pretrain", "finetune"):
        message = f"{url}: no store has the scheme 'nosuch'"
    with pytest.raises(InputError, match=f"^{re.escape(message)}"):
        with_urls(name, load_command(name))(*positional, **{**values, option: value})
    assert not list(tmp_path.iterdir())


def test_several_processes_have_no_run_in_a_store(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="--out faulty://b/run: one process trains to a store"):
        arguments_of("pretrain", out=Path("faulty://b/run"))


def test_commands_read_tables_and_texts_by_url(
    store: Any, own_text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put("b/text.txt", own_text.read_bytes())
    out = tmp_path / "tok"
    learned, _ = run_json(capsys, "tokenizer", "train", "faulty://b/*.txt", "--vocab-size", "400", "--out", out)
    assert learned["vocab_size"] == 400
    assert main(["corpus", "build", "faulty://b/absent", "--tokenizer", str(out), "--out", str(tmp_path / "c")]) == 2
    assert "bertwright: faulty://b/absent: no file of the store" in capsys.readouterr().err
    assert main(["index", "faulty://b/absent", "--model", "small-wiki", "--out", str(tmp_path / "i")]) == 2
    assert "bertwright: faulty://b/absent: no file of the store" in capsys.readouterr().err
    put("b/rows.csv", b"id,text\nr1,The bridge is old.\n")
    put("b/asked.csv", b"query\nWhich bridge?\n")
    index = str(tmp_path / "index")
    assert main(["index", "faulty://b/rows.csv", "--model", "small-wiki", "--out", index]) == 0
    assert main(["search", index, "--queries", "faulty://b/asked.csv"]) == 0
    assert "r1" in capsys.readouterr().out
    assert main(["predict", "--model", "faulty://b/absent", "--input", str(own_text)]) == 2
    assert "bertwright: faulty://b/absent: no file of the store" in capsys.readouterr().err


def test_a_model_by_url_is_served_by_the_name_of_its_run(store: Any) -> None:
    """The folder of the copy is named by a digest."""
    put("b/tuned/model/config.json", b"{}")
    assert list(_named((str(fetch_model("faulty://b/tuned/model")),), "--model", "MODEL")) == ["tuned"]
