"""Which Python and which onnxruntime train, and how much less a process takes with them than with others."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import NamedTuple

from poet_onnx.costing.device import HOST, DeviceProfile
from poet_onnx.errors import InputError


class Saved(NamedTuple):
    """What a process takes less than with the versions that take the most.

    Attributes:
        runtime_bytes: of what is imported.
        session_bytes: of a session.
        loading_bytes: besides, at the peak before the first step.
    """

    runtime_bytes: int
    session_bytes: int = 0
    loading_bytes: int = 0


_PYTHONS = {
    "3.10": Saved(1_650_000, 400_000, loading_bytes=150_000),
    "3.11": Saved(350_000),
    "3.12": Saved(1_150_000, 500_000),
    "3.13": Saved(1_450_000, 700_000),
    "3.14": Saved(0),
}
"""What versions of Python save, measured on x86_64 with onnxruntime 1.31 and 1.32; for 3.10 with 1.23, its last one."""

_RUNTIMES = {
    "1.23": Saved(2_600_000, loading_bytes=950_000),
    "1.24": Saved(1_750_000, loading_bytes=950_000),
    "1.25": Saved(1_800_000, loading_bytes=800_000),
    "1.26": Saved(1_600_000, loading_bytes=800_000),
    "1.27": Saved(1_400_000, loading_bytes=900_000),
    "1.28": Saved(1_200_000, loading_bytes=1_100_000),
    **dict.fromkeys(("1.29", "1.30"), Saved(1_100_000, loading_bytes=800_000)),
    "1.31": Saved(700_000, loading_bytes=500_000),
    "1.32": Saved(0),
}
"""What versions of onnxruntime save beside 1.32, measured on x86_64 with Python 3.11: with 1.31 .5 to .7 MB while ten
models train (scripts/results/every_call.csv). Before the first step it was 1.2 MB, and twice that with older ones, for
seven nets of 8 to 115 nodes, of which five train their last layer alone."""

_WHOLE_COLUMNS = ("1.23", "1.24", "1.25", "1.26")
"""Versions of onnxruntime whose convolutions of several images or groups write the columns of a whole image for each
thread, as counted by their allocations; 1.27 to 1.32 and onnxruntime-training 1.19.2 write 64 KiB of them."""

_LAST_RUNTIME = {"3.10": "1.23"}
"""Versions of Python whose last onnxruntime is an old one, with that."""


@dataclass(frozen=True, slots=True)
class Versions:
    """What runs a training process, as far as it is known.

    Attributes:
        python: such as "3.11"; None for the one that takes the most.
        onnxruntime: the stock one, such as "1.28"; None for the last one that the Python has.
    """

    python: str | None = None
    onnxruntime: str | None = None

    @classmethod
    def of(
        cls, device: DeviceProfile, python: str | None, onnxruntime: str | None, *, installed: str | None = None
    ) -> Versions:
        """Return what is said; on this machine, what is not said is what is here.

        Args:
            device: that trains.
            python: version that is said.
            onnxruntime: likewise.
            installed: version of the stock onnxruntime of this environment, if it has one.

        Raises:
            InputError: nobody has measured what a version that is said takes.
        """
        here = device.name == HOST
        if python is not None and python not in _PYTHONS:
            raise _not_measured("Python", python, list(_PYTHONS))
        if onnxruntime is not None and onnxruntime not in _RUNTIMES:
            raise _not_measured("onnxruntime", onnxruntime, list(_RUNTIMES))
        own = f"{sys.version_info.major}.{sys.version_info.minor}"
        if here and installed is not None and python in (None, own):
            onnxruntime = onnxruntime or ".".join(installed.split(".")[:2])
        return cls(python or (own if here else None), onnxruntime)

    @property
    def saved(self) -> Saved:
        """What they take less than those that take the most."""
        both = _PYTHONS.get(self.python or "", Saved(0)), _RUNTIMES.get(self._runtime, Saved(0))
        return Saved(*map(sum, zip(*both, strict=True)))

    def running_on(self, device: DeviceProfile, target: str) -> DeviceProfile:
        """Return a device with what its runtime takes otherwise than the last one."""
        takes_columns = target == "stock" and self._runtime in _WHOLE_COLUMNS
        return device.model_copy(update={"whole_columns": True}) if takes_columns else device

    @property
    def _runtime(self) -> str:
        return self.onnxruntime or _LAST_RUNTIME.get(self.python or "", "")


def _not_measured(what: str, said: str, known: list[str]) -> InputError:
    return InputError(f"There is no {what} {said!r} whose processes were measured: use {', '.join(known)}.")
