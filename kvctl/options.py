"""What all commands share: environment twins and the configuration file.

Every option `--some-name` is also `KVCTL_SOME_NAME` and the key `some-name` (or `some_name`) of the file given with
`--config`, TOML or YAML; flag beats environment beats file. A table with a command's name holds keys for that command.
`serve` also takes a HyperPod manifest (`kvctl.hyperpod_config`).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from kvctl.completions import completion_of
from kvctl.errors import Problem
from kvctl.hyperpod_config import is_manifest, options_of

_COMMANDS = frozenset({"serve", "sim", "bench", "validate", "replay", "explain", "top"})

_LARGEST_FILE = 4 << 20
MOST = 1e9
"""The greatest value of a number with a fraction where an option names no other: seconds of 30 years."""


def env(option: str) -> str:
    """`--router-mode` -> `KVCTL_ROUTER_MODE`; of `--x/--no-x` the first."""
    return "KVCTL_" + option.split("/")[0].lstrip("-").replace("-", "_").upper()


def option(name: str, *short: str, **settings: Any) -> Any:
    """`typer.Option` with the environment twin that every option has, and its values for the shell's completion.

    A number with a least value also has a greatest one: infinity, and what no clock can add, are refused.
    """
    if "min" in settings and "max" not in settings:
        settings.setdefault("callback", _finite)
    return typer.Option(*short, name, envvar=env(name), autocompletion=completion_of(name), **settings)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not -MOST <= value <= MOST:
        raise typer.BadParameter(f"{value:g} is more than the {MOST:g} that a number may be")
    return value


def load_config(ctx: typer.Context, path: Path | None) -> Path | None:
    """Eager callback of `--config`: the file's keys become the defaults of the command's options."""
    if path is None or ctx.resilient_parsing:
        return path
    command = ctx.command.name or ""
    data = _read(path)
    if is_manifest(data):
        data = _from_manifest(data, path, command)
    known = {param.name: param for param in ctx.command.params if param.name not in ("config", "help")}
    section = data.get(command, {})
    if not isinstance(section, dict):
        raise Problem(f"{path}: '{command}' must be a table of options")
    others = {key for key, value in data.items() if key == command or (key in _COMMANDS and isinstance(value, dict))}
    keys = {key: value for key, value in data.items() if key not in others} | section
    defaults: dict[str, Any] = {}
    for key, value in keys.items():
        param = {parameter_key(param): param for param in known.values()}.get(str(key).replace("_", "-"))
        if param is None or param.name is None:
            raise Problem(
                f"{path}: unknown key '{key}'; `kvctl {command} --help` lists the options, which are the keys"
            )
        defaults[param.name] = _value(param, value, f"{path}: '{key}'")
    ctx.default_map = {**(ctx.default_map or {}), **defaults}
    return path


def _from_manifest(manifest: dict[str, Any], path: Path, command: str) -> dict[str, Any]:
    """The options that a HyperPod manifest stands for; what it asks for beyond them is named on stderr."""
    if command != "serve":
        raise Problem(f"{path}: a HyperPod manifest is a configuration of `kvctl serve`, not of `kvctl {command}`")
    taken = options_of(manifest, str(path))
    for note in taken.notes:
        print(f"{path}: {note}", file=sys.stderr)
    return taken.options


def _value(param: Any, value: Any, shown: str) -> Any:
    """The value as the option takes it; one value stands for a list of one where an option may be repeated."""
    values = value if isinstance(value, list) else [value]
    if any(isinstance(one, dict | list) for one in values) or (isinstance(value, list) and not param.multiple):
        raise Problem(f"{shown} must be {'a value or a list of values' if param.multiple else 'one value'}")
    return values if param.multiple and value is not None else value


def parameter_key(param: Any) -> str:
    """The option's long name without dashes, which is its key in the file."""
    return next((opt[2:] for opt in param.opts if opt.startswith("--")), str(param.name).replace("_", "-"))


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:  # it may be a pipe: `--config <(…)`
            raw = file.read(_LARGEST_FILE + 1)
    except OSError as error:
        raise Problem(f"config file {path}: {error.strerror or error}") from None
    if len(raw) > _LARGEST_FILE:
        raise Problem(f"config file {path}: it has more than the {_LARGEST_FILE} bytes that are read")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Problem(f"config file {path}: {error}") from None
    if path.suffix in (".yaml", ".yml"):
        import yaml

        try:
            data = _document([one for one in yaml.safe_load_all(text) if one is not None], path)
        except (yaml.YAMLError, RecursionError) as error:
            raise Problem(f"config file {path}: {' '.join(str(error).split())}") from None
    else:
        import tomllib

        try:
            data = tomllib.loads(text)
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise Problem(f"config file {path}: {error}") from None
    if not isinstance(data, dict):
        raise Problem(f"config file {path}: expected a table of options")
    return data


def _document(documents: list[Any], path: Path) -> Any:
    """The one of a YAML file; of several the HyperPod manifest, which is often kept beside other objects."""
    if len(documents) > 1:
        documents = [one for one in documents if is_manifest(one)]
        if len(documents) != 1:
            raise Problem(
                f"config file {path}: several YAML documents: expected one, or one HyperPod manifest among them"
            )
    return documents[0] if documents else {}


ConfigFile = Annotated[
    Path | None,
    option(
        "--config",
        is_eager=True,
        callback=load_config,
        help="TOML or YAML file whose keys are these options; for serve also a HyperPod InferenceEndpointConfig.",
    ),
]
"""The `--config` of every command."""
