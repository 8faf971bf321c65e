"""Configuration from `GPULOOM_…` environment variables, declared as frozen dataclasses.

It decides what every setting's value is and tells all that is wrong at once. It never reads files, flags
or the process's own environment: the caller hands the variables in. A variable that is empty or blank
counts as not set.

    @dataclass(frozen=True)
    class DiscoveryConfig:
        log: LogConfig = group(LogConfig)
        resync_s: float = setting("GPULOOM_RESYNC", default=30.0, parse=seconds, help="How often to …")
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from enum import Enum
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar, cast, runtime_checkable

from gpuloom.errors import GpuloomError
from gpuloom.runtime.spelling import intended_name

PREFIX = "GPULOOM_"
HIDDEN = "***"

_SETTING = "gpuloom.setting"
_GROUP = "gpuloom.group"


class Required(Enum):
    REQUIRED = "required"


REQUIRED: Final = Required.REQUIRED


class Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


T = TypeVar("T")
C = TypeVar("C", bound=Dataclass)


class ConfigError(GpuloomError):
    """The environment does not make a configuration; each problem is one line for the operator."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


@dataclass(frozen=True, slots=True)
class Setting(Generic[T]):
    name: str
    default: T | Required
    parse: Callable[[str], T]
    help: str
    secret: bool


@runtime_checkable
class CrossChecked(Protocol):
    """A configuration whose fields must fit each other."""

    def problems(self) -> Iterable[str]:
        """One line for each thing that does not fit; nothing if all is well."""


def setting(
    name: str,
    *,
    parse: Callable[[str], T],
    help: str,  # noqa: A002 - reads best where settings are declared
    default: T | Required = REQUIRED,
    secret: bool = False,
) -> T:
    """Declare a field that one environment variable fills. The default is taken as it is, not parsed."""
    if not name.startswith(PREFIX):
        raise ValueError(f"setting {name} must start with {PREFIX}")
    declared = Setting(name, default, parse, help, secret)
    # Keyword-only, so that a required setting may follow one with a default.
    made = field(
        default=MISSING if default is REQUIRED else default, kw_only=True, metadata={_SETTING: declared}
    )
    return cast(T, made)


def group(config_type: type[C]) -> C:
    """Declare a field that holds another such dataclass, loaded from the same environment."""
    return field(default_factory=config_type, kw_only=True, metadata={_GROUP: config_type})


def load_config(config_type: type[C], environ: Mapping[str, str]) -> C:
    """Make the configuration, or raise ConfigError with everything that is wrong with the environment."""
    problems: list[str] = []
    config = _load(config_type, environ, problems)
    problems += _misspellings(environ, {declared.name for declared in settings_of(config_type)})
    if config is None or problems:
        # Two groups may share a setting; its problem is told once.
        raise ConfigError(tuple(dict.fromkeys(problems)))
    return config


def settings_of(config_type: type[Dataclass]) -> tuple[Setting[Any], ...]:
    """Every setting of a configuration and its groups in the order of declaration, each name once."""
    by_name: dict[str, Setting[Any]] = {}
    for member in fields(config_type):
        if _GROUP in member.metadata:
            found = settings_of(member.metadata[_GROUP])
        else:
            found = (_setting_of(config_type, member),)
        for declared in found:
            by_name.setdefault(declared.name, declared)
    return tuple(by_name.values())


def describe(config_type: type[Dataclass]) -> str:
    """What --help says about settings: name, default and meaning in columns."""
    rows = [(declared.name, _default_text(declared), declared.help) for declared in settings_of(config_type)]
    name_width = max((len(name) for name, _, _ in rows), default=0)
    default_width = max((len(default) for _, default, _ in rows), default=0)
    return "\n".join(
        f"  {name:<{name_width}}  {default:<{default_width}}  {meaning}" for name, default, meaning in rows
    )


def render(config: Dataclass) -> str:
    """What --print-config says: one NAME=value line for each setting, secrets hidden."""
    lines: dict[str, str] = {}
    for declared, value in _values(config):
        shown = HIDDEN if declared.secret and value is not None else _value_text(value)
        lines.setdefault(declared.name, f"{declared.name}={shown}")
    return "\n".join(lines.values())


def _load(config_type: type[C], environ: Mapping[str, str], problems: list[str]) -> C | None:
    """The configuration, or None if a field of it could not be made; problems are added to the list."""
    values: dict[str, object] = {}
    for member in fields(config_type):
        if _GROUP in member.metadata:
            nested = _load(member.metadata[_GROUP], environ, problems)
            if nested is not None:
                values[member.name] = nested
            continue
        declared = _setting_of(config_type, member)
        try:
            values[member.name] = _read(declared, environ)
        except ValueError as error:
            problems.append(f"{declared.name} {error}")
    if len(values) < len(fields(config_type)):
        return None
    config = config_type(**values)
    problems.extend(_cross_check(config))
    return config


def _cross_check(config: object) -> Iterable[str]:
    return config.problems() if isinstance(config, CrossChecked) else ()


def _read(declared: Setting[T], environ: Mapping[str, str]) -> T:
    raw = environ.get(declared.name, "")
    if raw.strip():
        try:
            return declared.parse(raw)
        except ValueError:
            if declared.secret:
                # The parser's text quotes the value.
                raise ValueError("has a value that is not valid (not shown, it is a secret)") from None
            raise
    if isinstance(declared.default, Required):
        raise ValueError(f"is required: {declared.help}")
    return declared.default


def _misspellings(environ: Mapping[str, str], known: set[str]) -> Iterator[str]:
    for name in sorted(environ):
        if not name.upper().startswith(PREFIX) or name in known:
            continue
        meant = intended_name(name, known)
        if meant is not None:
            yield f"{name} is not a setting, did you mean {meant}?"


def _setting_of(config_type: type[Dataclass], member: Field[Any]) -> Setting[Any]:
    declared = member.metadata.get(_SETTING)
    if not isinstance(declared, Setting):
        raise TypeError(f"{config_type.__name__}.{member.name} is neither setting(…) nor group(…)")
    return declared


def _values(config: Dataclass) -> Iterator[tuple[Setting[Any], object]]:
    for member in fields(config):
        value = getattr(config, member.name)
        if _GROUP in member.metadata:
            yield from _values(value)
        else:
            yield _setting_of(type(config), member), value


def _default_text(declared: Setting[Any]) -> str:
    if declared.default is REQUIRED:
        return "required"
    if declared.default is None or declared.default == ():
        return "not set"
    return f"default {HIDDEN if declared.secret else _value_text(declared.default)}"


def _value_text(value: object) -> str:
    """The value as it could stand in the environment, always on one line."""
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case float():
            return f"{value:g}" if float(f"{value:g}") == value else repr(value)
        case tuple():
            return ",".join(_value_text(item) for item in value)
        case _:
            plain = str(value)
            return plain if plain.isprintable() else json.dumps(plain)
