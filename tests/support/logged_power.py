"""An external meter beside a test: it logs a board's power, which follows what this process does."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

REST_WATTS, BUSY_WATTS = 2.0, 5.0
_PERIOD_SECONDS = 0.02
_BUSY_SHARE = 0.2


@contextlib.contextmanager
def logged_power(path: Path) -> Iterator[Path]:
    """Write a row of time and watts for every 20 ms, by whether this process was at work in them."""
    done = threading.Event()

    def log() -> None:
        with path.open("w", encoding="utf-8") as file:
            file.write("time,watts\n")
            seconds, processor = time.time(), time.process_time()
            while True:
                stops = done.wait(_PERIOD_SECONDS)
                now, worked = time.time(), time.process_time()
                busy = worked - processor > _BUSY_SHARE * (now - seconds)
                watts = BUSY_WATTS if busy else REST_WATTS
                # A meter is not held up where this thread is, on a machine that does other work: no row is missing.
                rows = max(1, round((now - seconds) / _PERIOD_SECONDS))
                file.writelines(f"{seconds + (now - seconds) * row / rows},{watts}\n" for row in range(1, rows + 1))
                file.flush()
                seconds, processor = now, worked
                if stops:
                    return

    thread = threading.Thread(target=log)
    thread.start()
    try:
        time.sleep(4 * _PERIOD_SECONDS)
        yield path
    finally:
        done.set()
        thread.join()
