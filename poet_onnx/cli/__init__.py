"""The command line `poet-onnx`: commands in the modules beside this one, errors as one sentence, settled exit codes.

0 done; 1 a check failed, or something that should not happen did; 2 bad input or usage; 3 proven infeasible;
4 a limit was reached before any plan was found; 130 interrupted.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import NoReturn

import click

from poet_onnx.cli.commands import COMMANDS
from poet_onnx.errors import InfeasibleError, LimitReachedError, PoetError, PoetWarning
from poet_onnx.interrupts import INTERRUPTED

_DEBUG = "POET_ONNX_DEBUG"
_BROKEN_PIPE = 141

_KINDS = {1: "failure", 2: "bad_input", 3: "infeasible", 4: "limit_reached", INTERRUPTED: "interrupted"}
"""What an exit code is called in JSON."""


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="poet-onnx", prog_name="poet-onnx")
@click.option("--debug", is_flag=True, help=f"Show the traceback of every error ({_DEBUG}=1 does the same).")
def command_line(debug: bool) -> None:
    """Rewrite an ONNX training graph so that its step fits the RAM of a device, for the least energy.

    The rewritten graph computes bit for bit what the original computes.
    """
    if debug:
        os.environ[_DEBUG] = "1"


for command in COMMANDS:
    command_line.add_command(command)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit."""
    _open_closed_streams()
    given = None if arguments is None else list(arguments)
    logging.getLogger("onnx_ir").setLevel(logging.ERROR)  # what it warns about on stderr is an error of ours
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", PoetWarning)
            warnings.showwarning = _show_warning
            status = command_line.main(args=given, prog_name="poet-onnx", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_stdout()  # whoever read our output has gone: nothing is left to say
        sys.exit(_BROKEN_PIPE)
    except BaseException as error:  # noqa: BLE001 - the last stop: whatever it is, the user gets a sentence
        status = _explain(error, as_json="--json" in (sys.argv[1:] if given is None else given))
    sys.exit(status if isinstance(status, int) else 0)


def _open_closed_streams() -> None:
    """Let what is printed to a stream that the caller has closed vanish, instead of failing."""
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
            setattr(sys, name, os.fdopen(descriptor, "w", encoding="utf-8"))


def _drop_stdout() -> None:
    """Let what is left to print vanish, so that Python does not try at exit what has failed."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Print one sentence about a warning."""
    from poet_onnx.cli.terminal import show

    show(f"warning: {message}", stderr=True)


def _explain(error: BaseException, *, as_json: bool) -> int:
    """Print one sentence about an error, and for programs an object on stdout; return the exit code."""
    from poet_onnx.cli.terminal import show, show_json

    error = _behind(error)
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 1
    if os.environ.get(_DEBUG, "") not in ("", "0"):
        show("".join(traceback.format_exception(error)), stderr=True)
    message, exit_code = _sentence(error)
    show("error: " + message.replace("\n", r"\n"), stderr=True)
    if as_json:
        said: dict[str, object] = {"kind": _KINDS[exit_code], "message": message, "exit_code": exit_code}
        if isinstance(error, InfeasibleError) or (isinstance(error, LimitReachedError) and error.smallest_budget_bytes):
            said["smallest_budget_bytes"] = error.smallest_budget_bytes
        try:
            show_json(json.dumps({"error": said}, indent=2))
            sys.stdout.flush()
        except OSError:
            _drop_stdout()  # the sentence is on stderr
    return exit_code


def _behind(error: BaseException) -> BaseException:
    """Return the signal that an import made an error of, whatever was made of that since; else the error itself."""
    cause: BaseException | None = error
    seen: list[BaseException] = []  # an error of somebody else's may lead back to itself
    while cause is not None and cause not in seen:
        if isinstance(cause, (SystemExit, KeyboardInterrupt)):
            return cause
        seen.append(cause)
        cause = cause.__cause__
    return error


def _sentence(error: BaseException) -> tuple[str, int]:
    """Return what to tell the user about an error, and the exit code."""
    first_line = (str(error).splitlines() or [""])[0]
    message, exit_code = (
        f"Something unexpected happened ({type(error).__name__}: {first_line}); "
        "please report it with what `poet-onnx --debug ...` prints.",
        1,
    )
    if isinstance(error, PoetError):
        message, exit_code = str(error), error.exit_code
    elif isinstance(error, click.UsageError):
        command = error.ctx.command_path if error.ctx is not None else "poet-onnx"
        message, exit_code = f"{error.format_message().rstrip('.')}; see `{command} --help`.", 2
    elif isinstance(error, click.ClickException):
        message, exit_code = error.format_message(), 2
    elif isinstance(error, (KeyboardInterrupt, click.Abort)):
        message, exit_code = "Interrupted.", INTERRUPTED
    elif isinstance(error, MemoryError):
        message, exit_code = "This machine has too little free memory; close other programs or use a larger one.", 1
    elif isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        message, exit_code = f"{where}{error.strerror or first_line}.", 2
    return message, exit_code
