"""What `poet-onnx profile` measured of a board as a whole, as a value: its device profile is made of it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from poet_onnx.costing.validation import Text
from poet_onnx.quantities import MOST_THREADS
from poet_onnx.record import Record

DIGITS = 6
"""Of a number in the profile of a board that was measured."""

_MOST_OVERHEAD = 0.5
"""Of the nodes' time: where more of it does not depend on their work, that says little of the board."""

_FlopsPerSecond = Annotated[float, Field(ge=1.0, le=1e18)]
_Share = Annotated[float, Field(ge=0.0, le=1.0)]


class Rates(Record, strict=True):
    """Rates that fit what the nodes of a step took with a number of threads.

    A node that is no view takes the larger of its arithmetic and of moving its bytes, and the overhead besides; all of
    them together take what the step took.

    Attributes:
        matmul_flops_per_second, elementwise_flops_per_second, memory_bytes_per_second, node_overhead_seconds: as in a
            device's profile.
        matmul_share, elementwise_share, memory_share: part of the nodes' time in which each of them is what a node
            waits for. Where it is 0, nothing was found out. The rest is overhead.
        miss_share: by how much the nodes miss what they took, as part of their time: 0 where each takes what fits.
        active_watts: power above idle during the steps; None where no meter saw any.
    """

    matmul_flops_per_second: _FlopsPerSecond
    elementwise_flops_per_second: _FlopsPerSecond
    memory_bytes_per_second: _FlopsPerSecond
    node_overhead_seconds: Annotated[float, Field(ge=0.0, le=1.0)]
    matmul_share: _Share
    elementwise_share: _Share
    memory_share: _Share
    miss_share: Annotated[float, Field(ge=0.0)]
    active_watts: Annotated[float, Field(gt=0.0, le=1e4)] | None = None

    @property
    def overhead_share(self) -> float:
        """Return the part of the nodes' time that no rate explains."""
        return max(0.0, 1.0 - self.matmul_share - self.elementwise_share - self.memory_share)


class BoardMeasurement(Record, strict=True):
    """What a board has and does.

    Attributes:
        model: name of the file whose step was measured.
        cores: that this process may use.
        ram_bytes: that a training process could take in place of this one.
        ram_limit: what sets that, in words.
        capacity_bytes: free room in the page directory; None if the device has no storage.
        one_thread: with one thread.
        all_threads: with as many as the costs are for; None if that is one.
    """

    model: Annotated[Text, Field(max_length=300)]
    cores: Annotated[int, Field(ge=1, le=MOST_THREADS)]
    ram_bytes: Annotated[int, Field(ge=0, le=10**16)]
    ram_limit: Annotated[Text, Field(max_length=300)]
    capacity_bytes: Annotated[int, Field(ge=0, le=10**16)] | None
    one_thread: Rates
    all_threads: Rates | None

    @property
    def warning(self) -> str | None:
        """Return in one sentence that the model is too small to tell how fast the board is; None where it is not."""
        share = self.one_thread.overhead_share
        if share <= _MOST_OVERHEAD:
            return None
        return (
            f"The nodes of {self.model} are so small that {share:.0%} of their time is the runtime's own: they tell "
            "little of the board's rates, so profile a larger model."
        )
