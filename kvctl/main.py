"""The command line: one typer application, a command a file. Nothing heavy is imported before a command runs."""

from __future__ import annotations

import io
import os
import sys
from importlib import import_module
from typing import Annotated, Any

import typer

from kvctl import __version__
from kvctl.errors import FAILED, Problem
from kvctl.help_pages import HelpCommand, HelpGroup

USAGE_ERROR: type[Any] = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")
"""Root of what the option parser refuses; where it lives differs between versions of typer."""

app = typer.Typer(
    name="kvctl",
    no_args_is_help=True,
    rich_markup_mode=None,
    cls=HelpGroup,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    help="Route LLM requests to the replica that already holds their KV cache, prove that it works, and measure "
    "what it is worth.",
    epilog="\b\nExamples:\n  kvctl serve --sim 4\n  kvctl serve --worker http://10.0.0.1:8000 --worker http://10.0.0.2:8000"
    "\n  kvctl validate -n prod\n  kvctl bench --modes kv,random",
)

_debug = False


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"kvctl {__version__}")
        raise typer.Exit


@app.callback()
def root(
    debug: Annotated[
        bool, typer.Option("--debug", envvar="KVCTL_DEBUG", help="Show the traceback of an error.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_version, help="Print the version and exit.")
    ] = False,
) -> None:
    global _debug
    _debug = debug


COMMANDS = {
    "serve": "kvctl.serve",
    "validate": "kvctl.validate",
    "bench": "kvctl.bench",
    "sim": "kvctl.sim",
    "replay": "kvctl.replay",
    "explain": "kvctl.explain",
    "keys": "kvctl.keys",
}
"""Each command and the module with the function of its name, or with the `group` that holds it and its subcommands."""


def _register() -> None:
    """The command that was asked for, or all of them where none was: for the list of commands and for completion."""
    asked = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    names = [asked] if asked in COMMANDS and "_KVCTL_COMPLETE" not in os.environ else list(COMMANDS)
    for name in names:
        module = vars(import_module(COMMANDS[name]))
        if "group" in module:
            app.add_typer(module["group"], name=name, cls=HelpGroup)
        else:
            app.command(name, cls=HelpCommand)(module[name])


def _say(text: str) -> None:
    """One line; a message may quote what a server said, and that may hold escape sequences."""
    plain = "".join(one if one.isprintable() else " " for one in text)
    print(f"kvctl: {plain}", file=sys.stderr)


def _where(wrong: Any) -> str:
    """The help that would have told."""
    context = getattr(wrong, "ctx", None)
    return f"`{context.command_path if context is not None else 'kvctl'} --help`"


def main() -> None:
    """Console entry: turns a `Problem` into one line on stderr and its exit code."""
    _register()
    if isinstance(sys.stdout, io.TextIOWrapper) and not sys.stdout.encoding.lower().startswith("utf"):
        sys.stdout.reconfigure(errors="replace")
    try:
        code = app(standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except USAGE_ERROR as wrong:
        if type(wrong).__name__ == "NoArgsIsHelpError":
            wrong.show()
        else:
            message = " ".join(wrong.format_message().split()).rstrip(".").replace(": Value error, ", ": ")
            _say(f"{message}; {_where(wrong)} lists what there is")
        sys.exit(wrong.exit_code)
    except typer.Abort:
        sys.exit(130)
    except Problem as problem:
        if _debug:
            raise
        _say(str(problem))
        sys.exit(problem.code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(FAILED)
    except Exception as error:
        if _debug:
            raise
        _say(f"internal error: {type(error).__name__}: {error}; run with `kvctl --debug …` for the traceback")
        sys.exit(FAILED)
