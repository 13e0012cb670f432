"""settings class → options of a command; typed options → the settings that they change.

The type, limits, default and help of an option are written in the settings class, at the setting that is marked with
`Option`. tyro makes the parser from what is returned here.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from inspect import Parameter, Signature
from typing import Annotated, Any, TypedDict, cast, get_args

from tyro.conf import arg

from bertwright.config import Group, Option, Settings


@dataclass(frozen=True)
class CommandOption:
    """Option of the command line, read from a settings class.

    option: the mark at the setting. path: names of the nested groups of settings that hold it. fields: the settings
    that the option sets, by name, with their types and defaults. help: docstring of the setting.
    """

    option: Option
    path: tuple[str, ...]
    fields: Mapping[str, tuple[Any, Any]]
    help: str

    @property
    def name(self) -> str:
        """Return the name of the option as an identifier: learning_rate for --learning-rate."""
        return (self.option.name or next(iter(self.fields))).replace("-", "_")

    @property
    def default(self) -> Any:
        """Return the default of the setting, or of the first of several."""
        return next(iter(self.fields.values()))[1]

    def argument(self) -> Any:
        """Return the annotation from which tyro makes the option."""
        types, defaults = zip(*self.fields.values(), strict=True)
        shown = " ".join(map(_shown, defaults))
        hint = f"(default: {shown})" if shown and types != (bool,) else ""
        kind = str if self.option.read else types[0] if len(types) == 1 else tuple.__class_getitem__(types)
        return Annotated[kind, arg(name=self.name, prefix_name=False, help=self.help, help_behavior_hint=hint)]

    def store(self, settings: dict[str, Any], value: Any) -> None:
        """Put a typed value into nested settings. A switch that was not typed is left out."""
        if isinstance(value, bool) and value is self.default:
            return
        for name in self.path:
            settings = settings.setdefault(name, {})
        value = self.option.read(value) if self.option.read else value
        settings.update(zip(self.fields, value if self.option.together else [value], strict=True))


def entries(settings: type[Settings], path: tuple[str, ...] = ()) -> Iterator[CommandOption]:
    """Yield the options of a settings class and of the settings nested in it."""
    fields = settings.model_fields
    for name, field in fields.items():
        option = next((mark for mark in field.metadata if isinstance(mark, Option)), None)
        if option is not None:
            together = {each: (fields[each].annotation, fields[each].default) for each in option.together or (name,)}
            yield CommandOption(option, path, together, " ".join((field.description or "").split()))
        elif isinstance(field.annotation, type) and issubclass(field.annotation, Settings):
            yield from entries(field.annotation, (*path, name))


def options(settings: type[Settings]) -> Any:
    """Return the mark of a command's parameter that takes the options of a settings class.

    The parameter is a mapping, nested as the settings are. It holds only the settings whose options were typed.
    """
    groups: dict[str, dict[str, CommandOption]] = {group.replace("-", "_"): {} for group in get_args(Group)}
    for entry in entries(settings):
        groups[entry.option.group.replace("-", "_")][entry.name] = entry

    def collect(**typed: Mapping[str, Any]) -> dict[str, Any]:
        changed: dict[str, Any] = {}
        for group, values in typed.items():
            for name, value in values.items():
                groups[group][name].store(changed, value)
        return changed

    typed_dict: Any = TypedDict  # mypy knows only those that are written out
    arguments = {
        group: Annotated[
            typed_dict(group, {name: entry.argument() for name, entry in members.items()}, total=False),
            arg(name=group, prefix_name=False),
        ]
        for group, members in groups.items()
        if members
    }
    collect.__annotations__ = arguments
    # A switch has a value from the start: tyro calls it --no-… where that is true.
    switches = {
        group: {name: entry.default for name, entry in groups[group].items() if isinstance(entry.default, bool)}
        for group in arguments
    }
    parameters = [
        Parameter(group, Parameter.KEYWORD_ONLY, annotation=kind, default=switches[group])
        for group, kind in arguments.items()
    ]
    cast(Any, collect).__signature__ = Signature(parameters)
    return arg(constructor=collect, prefix_name=False)


def option_at(class_name: str, path: tuple[Any, ...]) -> str | None:
    """Return the option that sets the setting at `path` of a settings class, such as --warmup; None where none does."""
    for settings in Settings.__subclasses__():
        for option in entries(settings) if settings.__name__ == class_name else ():
            if any(path[: len(option.path) + 1] == (*option.path, name) for name in option.fields):
                return f"--{option.name.replace('_', '-')}"
    return None


def _shown(default: Any) -> str:
    """Return a default as a person would type it; empty where there is none."""
    if default is None or default == ():
        return ""
    if isinstance(default, tuple):
        return ",".join(map(str, default))
    return f"{default:g}" if isinstance(default, float) else str(default)
