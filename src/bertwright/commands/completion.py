"""The command completion: what a shell needs to complete commands, options and their values, for three shells.

The table of commands and each command's own signature are read when the script is asked for; nothing is kept in step
by hand.
"""

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from tyro.conf import Positional

Table = Mapping[str, tuple[str, str]]
"""A command's name → the module and function that it is, and what it does."""


@dataclass(frozen=True)
class Command:
    """A command as it is typed.

    does      what it does
    options   every option, and the values it takes: names, none (a switch), or None for any, files among them
    words     what stands without an option, where it is one of several names
    """

    name: str
    does: str
    options: Mapping[str, tuple[str, ...] | None]
    words: tuple[str, ...]


def completion(table: Table, shell: Positional[Literal["bash", "zsh", "fish"]], /) -> Mapping[str, Any]:
    """Print what makes a shell complete bertwright's commands, options and values.

    bash: eval "$(bertwright completion bash)" in ~/.bashrc; zsh: the same in ~/.zshrc, behind compinit; fish:
    bertwright completion fish > ~/.config/fish/completions/bertwright.fish

    Args:
        shell: bash, zsh or fish.
    """
    write = {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell]
    return {"shell": shell, "text": write([_command(name, *entry) for name, entry in table.items()])}


def _command(name: str, place: str, does: str) -> Command:
    module, function = place.split(".")
    called: Callable[..., Any] = getattr(importlib.import_module(f"bertwright.commands.{module}"), function)
    hints = get_type_hints(called, include_extras=True)
    options: dict[str, tuple[str, ...] | None] = {}
    words: tuple[str, ...] = ()
    for parameter in inspect.signature(called).parameters.values():
        values = _values(hints[parameter.name])
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            options[f"--{parameter.name.replace('_', '-')}"] = values
        else:
            words = words or values or ()
    return Command(name, does, {**options, "--json": (), "--help": ()}, words)


def _values(kind: Any) -> tuple[str, ...] | None:
    """The names that a type allows, () for a switch, None for anything else."""
    if kind is bool:
        return ()
    if get_origin(kind) is Annotated:
        return _values(get_args(kind)[0])
    if get_origin(kind) is Literal:
        return tuple(map(str, get_args(kind)))
    return next((found for part in get_args(kind) if (found := _values(part))), None)


def _groups(commands: list[Command]) -> dict[str, list[Command]]:
    """The first words, and the commands that begin with each."""
    groups: dict[str, list[Command]] = {}
    for command in commands:
        groups.setdefault(command.name.split()[0], []).append(command)
    return groups


def _bash(commands: list[Command]) -> str:
    groups = _groups(commands)
    second, options, values = [], [], []
    for first, group in groups.items():
        if group[0].name != first:
            names = " ".join(command.name.split()[1] for command in group)
            second.append(f'    {first}) words="{names}" ;;')
    for command in commands:
        known, names = " ".join(command.options), " ".join(command.words)
        options.append(f'    "{command.name}") options="{known}"; words="{names}" ;;')
        for option, allowed in command.options.items():
            if allowed is None:
                values.append(f'    "{command.name} {option}") files=1 ;;')
            elif allowed:
                names = " ".join(allowed)
                values.append(f'    "{command.name} {option}") words="{names}" ;;')
    return _BASH.format(
        first=" ".join([*groups, "--help", "--version"]),
        pairs="|".join(first for first, group in groups.items() if group[0].name != first),
        second="\n".join(second),
        options="\n".join(options),
        values="\n".join(values),
    )


_BASH = """\
# bertwright's commands and options for bash; put this line into ~/.bashrc:  eval "$(bertwright completion bash)"
_bertwright() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" last="${{COMP_WORDS[COMP_CWORD-1]}}"
  local command="${{COMP_WORDS[1]}}" at=2 words="" options="" files=""
  COMPREPLY=()
  if [ "$COMP_CWORD" -le 1 ]; then
    COMPREPLY=($(compgen -W "{first}" -- "$word"))
    return
  fi
  case "$command" in
    {pairs})
      if [ "$COMP_CWORD" -eq 2 ]; then
        case "$command" in
{second}
        esac
        COMPREPLY=($(compgen -W "$words" -- "$word"))
        return
      fi
      command="$command ${{COMP_WORDS[2]}}" at=3 ;;
  esac
  case "$command $last" in
{values}
    *)
      case "$command" in
{options}
      esac ;;
  esac
  if [ -n "$options" ] && [[ "$word" == -* ]]; then
    COMPREPLY=($(compgen -W "$options" -- "$word"))
  elif [ -n "$words" ] && {{ [ -z "$options" ] || [ "$COMP_CWORD" -eq "$at" ]; }}; then
    COMPREPLY=($(compgen -W "$words" -- "$word"))
  else
    compopt -o filenames 2>/dev/null
    local IFS=$'\\n'
    COMPREPLY=($(compgen -f -- "$word"))
  fi
}}
complete -F _bertwright bertwright
"""


def _zsh(commands: list[Command]) -> str:
    first, second, cases = [], [], []
    for word, group in _groups(commands).items():
        alone = group[0].name == word
        does = group[0].does if alone else ", ".join(command.name.split()[1] for command in group)
        first.append(f"    {_quoted(f'{word}:{does}')}")
        if not alone:
            named = " ".join(_quoted(f"{command.name.split()[1]}:{command.does}") for command in group)
            second.append(f"    {word}) known=({named}) ;;")
    for command in commands:
        lines = []
        for option, allowed in command.options.items():
            lines.append(_quoted(option if allowed == () else f"*{option}:value:{_zsh_values(allowed)}"))
        lines.append(_quoted(f"*:word:{_zsh_values(command.words)}"))
        cases.append(f"    {_quoted(command.name)}) _arguments {' '.join(lines)} ;;")
    return _ZSH.format(first="\n".join(first), second="\n".join(second), cases="\n".join(cases))


def _zsh_values(names: tuple[str, ...] | None) -> str:
    return f"({' '.join(names)})" if names else "_files"


_ZSH = """\
#compdef bertwright
# bertwright's commands and options for zsh; behind compinit in ~/.zshrc:  eval "$(bertwright completion zsh)"
_bertwright() {{
  local command="$words[2]"
  local -a known
  known=(
{first}
  )
  if (( CURRENT == 2 )); then
    _describe command known
    return
  fi
  known=()
  case "$command" in
{second}
  esac
  if (( $#known )); then
    if (( CURRENT == 3 )); then
      _describe command known
      return
    fi
    command="$command $words[3]"
    shift words
    (( CURRENT-- ))
  fi
  shift words
  (( CURRENT-- ))
  case "$command" in
{cases}
  esac
}}
compdef _bertwright bertwright
"""


def _fish(commands: list[Command]) -> str:
    lines = [_FISH]
    for word, group in _groups(commands).items():
        alone = group[0].name == word
        does = group[0].does if alone else ", ".join(command.name.split()[1] for command in group)
        lines.append(f"complete -c bertwright -n '__bertwright_at 1' -f -a {word} -d {_quoted(does)}")
        for command in [] if alone else group:
            name = command.name.split()[1]
            lines.append(
                f"complete -c bertwright -n '__bertwright_at 2 {word}' -f -a {name} -d {_quoted(command.does)}"
            )
    for command in commands:
        within = f"complete -c bertwright -n '__bertwright_in {command.name}'"
        if command.words:
            lines.append(f"{within} -f -a '{' '.join(command.words)}'")
        for option, allowed in command.options.items():
            takes = "" if allowed == () else " -r -F" if allowed is None else f" -x -a '{' '.join(allowed)}'"
            lines.append(f"{within} -l {option.removeprefix('--')}{takes}")
    return "\n".join(lines) + "\n"


_FISH = """\
# bertwright's commands and options for fish:
#   bertwright completion fish > ~/.config/fish/completions/bertwright.fish
function __bertwright_at
    set -l typed (commandline -opc)
    test (count $typed) -eq $argv[1]; and test "$typed[2..-1]" = "$argv[2..-1]"
end
function __bertwright_in
    set -l typed (commandline -opc)
    set -l last (math (count $argv) + 1)
    test (count $typed) -ge $last; and test "$typed[2..$last]" = "$argv"
end"""


def _quoted(text: str) -> str:
    """Text between single quotes, as all three shells take it."""
    return "'" + text.replace("'", "’") + "'"
