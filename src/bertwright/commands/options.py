"""settings class → options of a command; typed options → the settings that they change.

The type, limits, default and help of an option are written in the settings class, at the setting that is marked with
`Option`. tyro makes the parser from what is returned here.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from inspect import Parameter, Signature
from itertools import pairwise
from operator import or_
from types import UnionType
from typing import Annotated, Any, TypedDict, Union, cast, get_args, get_origin

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
    is_chosen: bool = False
    """True where the default is decided when the command runs."""

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
        types = [_without_limits(kind) for kind, _ in self.fields.values()]
        defaults = [default for _, default in self.fields.values()]
        shown = "chosen" if self.is_chosen else " ".join(map(_shown, defaults))
        hint = f"(default: {shown})" if shown else ""
        kind = str if self.option.read else types[0] if len(types) == 1 else tuple.__class_getitem__(tuple(types))
        return Annotated[kind, arg(name=self.name, prefix_name=False, help=self.help, help_behavior_hint=hint)]

    def store(self, settings: dict[str, Any], value: Any) -> None:
        """Put a typed value into nested settings."""
        for name in self.path:
            settings = settings.setdefault(name, {})
        value = self.option.read(value) if self.option.read else value
        settings.update(zip(self.fields, value if self.option.together else [value], strict=True))


@dataclass(frozen=True)
class SettingsOptions:
    """Mark of a command's parameter that takes the options of a settings class.

    The parameter is a mapping, nested as the settings are. It holds only the settings whose options were typed.
    recipes: settings by their names. The values of the one that --recipe names are the defaults in the help.
    plain: the defaults where no recipe is named; None: those of the class. chosen: settings among them that are
    decided when the command runs. left_out: settings that are no options of the command. others: option of the
    command → the mark that takes the place of this one where that option is typed.
    """

    settings: type[Settings]
    recipes: Mapping[str, Settings] = field(default_factory=dict)
    plain: Settings | None = None
    chosen: frozenset[str] = frozenset()
    left_out: frozenset[str] = frozenset()
    others: Mapping[str, "SettingsOptions"] = field(default_factory=dict)

    def annotation(self, arguments: Sequence[str] = ()) -> Any:
        """Return the annotation of the parameter from which tyro makes the options, for a typed command line."""
        typed_names = {text.split("=", 1)[0].replace("_", "-") for text in arguments}
        for name, other in self.others.items():
            if name in typed_names:
                return other.annotation(arguments)
        recipe = self.recipes.get(_typed_recipe(arguments))
        options = [
            option for option in entries(self.settings, recipe or self.plain) if self.left_out.isdisjoint(option.fields)
        ]
        if recipe is None:
            options = [replace(option, is_chosen=not self.chosen.isdisjoint(option.fields)) for option in options]
        by_name = {option.name: option for option in options}

        def collect(**groups: Mapping[str, Any]) -> dict[str, Any]:
            changed: dict[str, Any] = {}
            for values in groups.values():
                for name, value in values.items():
                    if name not in switches or is_typed(name):
                        by_name[name].store(changed, value)
            return changed

        def is_typed(name: str) -> bool:
            typed = name.replace("_", "-")
            return not typed_names.isdisjoint({f"--{typed}", f"--no-{typed}"})

        # Only switches have a value from the start, without which tyro would ask for True or False.
        switches = {name: option.default for name, option in by_name.items() if isinstance(option.default, bool)}
        typed_dict: Any = TypedDict  # mypy knows only those that are written out
        parameters = []
        for group in get_args(Group):
            members = {option.name: option for option in options if option.option.group == group}
            if not members:
                continue
            types = typed_dict(group, {name: option.argument() for name, option in members.items()}, total=False)
            kind: Any = Annotated[types, arg(name=group, prefix_name=False)]
            defaults = {name: default for name, default in switches.items() if name in members}
            name = group.replace("-", "_")
            parameters.append(Parameter(name, Parameter.KEYWORD_ONLY, annotation=kind, default=defaults))
        collect.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        cast(Any, collect).__signature__ = Signature(parameters)
        return Annotated[Mapping[str, Any], arg(constructor=collect, prefix_name=False)]


def _without_limits(kind: Any) -> Any:
    """Return a type without pydantic's limits, which tyro would print; the settings class checks them."""
    if get_origin(kind) is Annotated:
        return _without_limits(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        return reduce(or_, map(_without_limits, get_args(kind)))
    return kind


def entries(
    settings: type[Settings], defaults: Settings | None = None, path: tuple[str, ...] = ()
) -> Iterator[CommandOption]:
    """Yield the options of a settings class and of the settings nested in it, with the defaults of the class.

    defaults: settings whose values take the place of the class's defaults.
    """
    defaults = defaults or settings.model_construct()
    fields = settings.model_fields
    for name, info in fields.items():
        option = next((mark for mark in info.metadata if isinstance(mark, Option)), None)
        if option is not None:
            together = {each: (fields[each].annotation, getattr(defaults, each)) for each in option.together or (name,)}
            yield CommandOption(option, path, together, " ".join((info.description or "").split()))
        elif isinstance(info.annotation, type) and issubclass(info.annotation, Settings):
            yield from entries(info.annotation, getattr(defaults, name), (*path, name))


def option_at(class_name: str, path: tuple[Any, ...]) -> str | None:
    """Return the option that sets the setting at `path` of a settings class, such as --warmup; None where none does."""
    for settings in Settings.__subclasses__():
        for option in entries(settings) if settings.__name__ == class_name else ():
            if any(path[: len(option.path) + 1] == (*option.path, name) for name in option.fields):
                return f"--{option.name.replace('_', '-')}"
    return None


def _typed_recipe(arguments: Sequence[str]) -> str:
    """Return the value of --recipe among typed arguments; empty where there is none."""
    words = [word for text in arguments for word in (text.split("=", 1) if text.startswith("--recipe=") else [text])]
    return dict(pairwise(words)).get("--recipe", "")


def _shown(default: Any) -> str:
    """Return a default as a person would type it; empty where there is none."""
    if default is None or default == ():
        return ""
    if isinstance(default, bool):
        return "on" if default else "off"
    if isinstance(default, tuple):
        return ",".join(map(str, default))
    return f"{default:g}" if isinstance(default, float) else str(default)
