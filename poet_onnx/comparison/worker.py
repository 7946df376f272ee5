"""A cell in a process of its own: a crash or a hang there is the result of that cell.

The process gets its job through stdin and keeps listening there: when whoever started it is gone, it goes, too.
"""

from __future__ import annotations

import os
import pickle
import signal
import struct
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from typing import IO

from poet_onnx.comparison.cell import Job, Outcome
from poet_onnx.comparison.methods import outcome_of

GRACE_SECONDS = 60.0
"""A method may take twice its time limit and these seconds; then its process is ended."""

_LENGTH = struct.Struct("<Q")
_MOST_LETTERS = 300
_running: set[subprocess.Popen[bytes]] = set()
_lock = threading.Lock()


def run_apart(job: Job) -> Outcome:
    """Return what came of a cell; its method runs in a process of its own, which is ended where it takes too long."""
    seconds = 2 * job.cell.time_limit_seconds + GRACE_SECONDS
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with tempfile.TemporaryFile() as answer, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "poet_onnx.comparison.worker"],
            stdin=subprocess.PIPE,
            stdout=answer,
            stderr=errors,
            env=environment,
            start_new_session=True,  # Ctrl-C is for whoever shows the progress
        )
        with _lock:
            _running.add(process)
        try:
            assert process.stdin is not None
            with suppress(BrokenPipeError):  # its exit code says more
                _send(job, process.stdin)
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            return Outcome(
                status="no_plan",
                message=f"The method did not stop and was ended after {seconds:.0f} s.",
                solve_seconds=seconds,
            )
        finally:
            with _lock:
                _running.discard(process)
            process.kill()
            process.communicate()
        return _answered(process.returncode, _text(answer), _text(errors))


def signal_running(number: signal.Signals) -> None:
    """Send a signal to the cells that this process has at work: SIGINT lets them end with the best plans they have."""
    with _lock:
        for process in _running:
            process.send_signal(number)


def _send(job: Job, stream: IO[bytes]) -> None:
    content = pickle.dumps(job)
    stream.write(_LENGTH.pack(len(content)) + content)
    stream.flush()


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _answered(code: int, answer: str, errors: str) -> Outcome:
    """Return the outcome that a process wrote, or one that says how it ended without."""
    if code == 0:
        return Outcome.model_validate_json(answer)
    if code < 0:
        names = {each.value: each.name for each in signal.Signals}
        ending = f"was killed by {names.get(-code, f'signal {-code}')}"
        if code == -signal.SIGKILL:
            ending += ", as the kernel does where memory is short"
        return Outcome(status="failed", message=f"The method's process {ending}.")
    last = (errors.strip().splitlines() or [f"exit code {code}"])[-1]
    return Outcome(status="failed", message=f"The method failed: {last[:_MOST_LETTERS].rstrip('.')}.")


def _leave_with_parent() -> None:
    os.read(0, 1)
    os._exit(1)


def main() -> None:
    """Read a job from stdin, and write its outcome to stdout; what libraries print goes to stderr."""
    answer = os.dup(1)
    os.dup2(2, 1)
    with os.fdopen(os.dup(0), "rb", buffering=0) as given:
        (length,) = _LENGTH.unpack(_read(given, _LENGTH.size))
        job = pickle.loads(_read(given, length))
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    try:
        outcome = outcome_of(job)
    except KeyboardInterrupt:
        outcome = Outcome(status="interrupted", message="The method was interrupted before it had a plan.")
    with os.fdopen(answer, "w", encoding="utf-8") as file:
        file.write(outcome.model_dump_json())


def _read(stream: IO[bytes], count: int) -> bytes:
    content = b""
    while len(content) < count:
        part = stream.read(count - len(content))
        if not part:
            raise EOFError("the job ended early")
        content += part
    return content


if __name__ == "__main__":
    main()
