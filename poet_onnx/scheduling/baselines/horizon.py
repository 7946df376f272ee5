"""How long each node may be recomputed and each value be needed, in stages; one stage for each node of the order."""

from __future__ import annotations

from dataclasses import dataclass

from poet_onnx.scheduling.liveness import Instance


@dataclass(frozen=True)
class Horizon:
    """Bounds on stages that cut off no plan.

    Attributes:
        last_run: for each node, the last stage in which it may usefully run; its own if it may run only once.
        last_need: for each value, the last stage in which something may read it.
    """

    last_run: tuple[int, ...]
    last_need: tuple[int, ...]

    def may_leave(self, instance: Instance, value: int) -> bool:
        """Return whether a value may be dropped, whatever else is: it can be made again wherever it may be needed."""
        return value not in instance.kept and self.last_run[instance.producer[value]] >= self.last_need[value]


def find_horizon(instance: Instance) -> Horizon:
    """Work the bounds out from the last reader backwards.

    A node may not run again where that would change bits: not behind an update of a resident tensor that it reads.
    """
    count = len(instance.nodes)
    last_run = [0] * count
    last_need = list(instance.producer)
    for position in range(count - 1, -1, -1):
        for value in instance.writes[position]:
            last_need[value] = max((last_run[use] for use in instance.uses[value]), default=position)
        last_run[position] = position
        again = instance.problem.recompute and instance.nodes[position].recomputable
        if again and not instance.kept.intersection(instance.writes[position]):
            needed = max((last_need[value] for value in instance.writes[position]), default=position)
            later = (other for other in instance.changers[position] if other > position)
            last_run[position] = max(position, min((needed, *later)))
    return Horizon(tuple(last_run), tuple(last_need))
