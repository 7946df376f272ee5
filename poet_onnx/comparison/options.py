"""What a comparison may be asked for."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, SupportsIndex

from poet_onnx.choices import AUTO, BEST, METHODS, ORDERS
from poet_onnx.options import option, says
from poet_onnx.rewriting.options import STORAGE, THREADS, InspectOptions, StepOptions

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from poet_onnx.comparison.running import SweepProgress
    from poet_onnx.costing.device import DeviceProfile

PROCESSES = "processes"
_MOST_SECONDS = 10**6


@dataclass(frozen=True, kw_only=True)
class CompareOptions(StepOptions):
    """What `compare` takes."""

    HOMES: ClassVar[Mapping[str, str]] = {
        **InspectOptions.HOMES,
        "Executor": "concurrent.futures",
        "SweepProgress": "poet_onnx.comparison.running",
    }

    device: str | os.PathLike[str] | DeviceProfile | Sequence[str | os.PathLike[str] | DeviceProfile] = field(
        metadata=says("What to plan for, one or several: names, or TOML files.", metavar="D[,D...]", commas=True)
    )
    storage: str | None = field(default=None, metadata=STORAGE)
    budgets: Sequence[SupportsIndex | str] = option(
        ("90%", "75%", "50%", "25%"),
        "Bounds on activations, gradients and workspace: bytes, or percent of what the step needs after ordering. "
        "Default: `90%,75%,50%,25%`.",
        metavar="P%|BYTES,...",
        commas=True,
    )
    deadlines: Sequence[float | str | None] = option(
        (None,),
        "Bounds on the predicted time of a step; `none` is no bound. Default: none.",
        metavar="none|Fx|TIME,...",
        commas=True,
    )
    methods: Sequence[str] = option(
        METHODS,
        "Some [methods](benchmarks.md#methods). Default: all.",
        metavar="NAME,...",
        choices=METHODS,
        commas=True,
    )
    order: str = option(
        BEST,
        "The order of the nodes: `best` is one that needs little memory, and `poet` may find a better one still; "
        "`memory-aware` is that one for every method; `file` is that of the file.",
        choices=ORDERS,
    )
    parts: SupportsIndex | str = option(
        AUTO,
        "Computes weight gradients larger than BYTES in parts. `auto` does so for the budgets that need it, as "
        "`rewrite` does; `whole` never does.",
        metavar="auto|whole|BYTES",
    )
    executor: Executor | str = option(
        PROCESSES,
        "`processes` plans as many cells at once as there are processors, `processes:4` four. "
        "`dask:tcp://HOST:PORT` hands them to a Dask cluster (extra `[dask]`), whose workers need poet-onnx, too.",
        metavar="KIND",
    )
    time_limit_seconds: float = option(
        60.0,
        "Seconds for each method on each problem.",
        flag="--time-limit",
        metavar="SECONDS",
        above=0.0,
        below=_MOST_SECONDS,
    )
    output: str | os.PathLike[str] | None = option(
        None, "Folder in which filled cells are kept and found again.", python_only=True
    )
    name: str | None = option(None, "Of the model in tables; default that of its file.", python_only=True)
    progress: Callable[[SweepProgress], None] | None = option(None, "Told of each filled cell.", python_only=True)
    threads: int | None = field(default=None, metadata=THREADS)
