"""The command completion: scripts with which a shell completes commands, options and values. tyro writes them."""

import io
from contextlib import redirect_stdout, suppress
from dataclasses import make_dataclass
from typing import Annotated, Any, Literal, Union
from warnings import catch_warnings

from tyro.conf import OmitSubcommandPrefixes, Positional, subcommand

from bertwright.commands import COMMANDS, CommandResult, load_command, parse

_HELP = "{'flags': ['-h', '--help'], 'description': 'show help message and exit', 'type': 'flag'}"
_JSON = "{'flags': ['--json'], 'description': 'one JSON object as the result', 'type': 'flag'}"
_PATCHES = (
    (_HELP, f"{_HELP}, {_JSON}"),
    # Options are offered where a dash is typed, files where nothing else fits: tyro knows no files behind a command.
    ("if flag.startswith(current_word):", "if current_word[:1] == '-' and flag.startswith(current_word):"),
    ("for completion in completions:", "for completion in completions or ['__TYRO_COMPLETE_FILES__']:"),
    # bash itself completes files then, names with spaces and folders included.
    ('COMPREPLY=($(compgen -f -- "$cur"))', "COMPREPLY=()"),
    ("\ncomplete -F", "\ncomplete -o bashdefault -o default -F"),
    # fish's words end before the cursor's word, which is completed.
    ("$words $current)", "$words (commandline -ct) $current)"),
)


def completion_command(shell: Positional[Literal["bash", "zsh", "fish"]], /) -> CommandResult:
    """Print the script that makes a shell complete bertwright's commands, options and values.

    bash: eval "$(bertwright completion bash)" in ~/.bashrc; zsh: the same in ~/.zshrc, behind compinit; fish:
    bertwright completion fish > ~/.config/fish/completions/bertwright.fish

    Args:
        shell: Name of the shell: bash, zsh or fish.
    """
    stream = io.StringIO()
    with redirect_stdout(stream), suppress(SystemExit), catch_warnings(action="ignore", category=UserWarning):
        parse(_all_commands(), ["--tyro-print-completion", shell], prog="bertwright")
    script = stream.getvalue()
    for old, new in _PATCHES:
        script = script.replace(old, new)
    return {"shell": shell, "text": script}


def _all_commands() -> Any:
    """Return all commands as one type for tyro: a union of commands, and of groups that are unions of commands."""
    union: Any = Union  # as values, since these types are known at run time only
    without_prefix: Any = OmitSubcommandPrefixes
    members: dict[str, Any] = {}
    groups: dict[str, list[Any]] = {}
    for name in COMMANDS:
        first, _, last = name.partition(" ")
        # Twice, since tyro takes a union of one member for no union. It warns of the second one, and uses that.
        twice = [Annotated[Any, subcommand(last or first, constructor=load_command(name))] for _ in range(2)]
        if last:
            groups.setdefault(first, []).extend(twice)
        else:
            members[first] = twice[0]
    for first, commands in groups.items():
        group = make_dataclass(first, [("command", without_prefix[union[tuple(commands)]])])
        members[first] = Annotated[group, subcommand(first)]
    return union[tuple(members.values())]
