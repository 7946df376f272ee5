"""Algorithm 1 of POET (Patil et al. 2022) with U and FREE of Checkmate (Jain et al. 2020, equations 2 to 5).

Stages t and nodes k, n of each: R[t,k] node k runs in stage t, R[t,t] = 1. For values v: S_RAM[t,v] v is in RAM when
stage t starts, S_AUX[t,v] it is in storage then, M_out[t,v] it is written out at that moment, M_in[t,v] it is read back
when stage t is over. FREE[t,v,k]: v is dropped behind node k of stage t. U[t,k]: bytes while node k of stage t runs.

It differs from the publication only where it would otherwise not speak of the same problem, and always in its favour:
matrices are over values where a node has several; stages in which a value or a node is of no use have no variables; U
has the kernel's workspace and the buffers that outputs take over from inputs, as the simulator counts them. What stays:
a value is written out one stage after it was made at the earliest, a value read back is there for the whole next stage,
and the deadline counts computing alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from poet_onnx.plan import Action, Step
from poet_onnx.plan.limits import Limits
from poet_onnx.scheduling.baselines.horizon import Horizon, find_horizon
from poet_onnx.scheduling.baselines.linear import LinearModel
from poet_onnx.scheduling.liveness import Instance
from poet_onnx.simulate import versions

SCALE = 1000.0
"""The base energy, and the budget, in the units that SCIP sees."""

Key = tuple[int, int]


@dataclass
class PaperForm:
    """The program of one problem in one order.

    Attributes:
        instance: nodes and values by number.
        limits: on the step.
        horizon: where variables are of use.
        model: the program.
        run, held, stored, leaving, arriving: numbers of R, S_RAM, S_AUX, M_out and M_in by (stage, node or value).
    """

    instance: Instance
    limits: Limits
    horizon: Horizon
    model: LinearModel = field(default_factory=LinearModel)
    run: dict[Key, int] = field(default_factory=dict)
    held: dict[Key, int] = field(default_factory=dict)
    stored: dict[Key, int] = field(default_factory=dict)
    leaving: dict[Key, int] = field(default_factory=dict)
    arriving: dict[Key, int] = field(default_factory=dict)

    @property
    def views_joules(self) -> float:
        """Return the energy of the nodes that the program leaves out."""
        costs = self.instance.problem.costs
        nodes = [costs.nodes[node.name] for node in self.instance.views]
        return sum(node.joules + costs.idle_watts * node.seconds for node in nodes)

    def steps(self, values: Sequence[float]) -> tuple[Step, ...]:
        """Return the plan of a solution."""
        instance = self.instance
        run, out, back = (
            {key for key, variable in table.items() if values[variable] > 0.5}
            for table in (self.run, self.leaving, self.arriving)
        )
        steps: list[Step] = []
        copies = [0] * len(instance.nodes)
        for stage in range(len(instance.nodes)):
            for value, name in enumerate(instance.values):
                if (stage, value) in out:
                    steps += [Step(Action.PAGE_OUT_START, name), Step(Action.PAGE_OUT_END, name)]
            for position in range(stage + 1):
                if (stage, position) in run:
                    steps.append(Step(Action.COMPUTE, instance.nodes[position].name, copies[position]))
                    copies[position] += 1
            for value, name in enumerate(instance.values):
                if (stage, value) in back:
                    steps += [Step(Action.PAGE_IN_START, name), Step(Action.PAGE_IN_END, name)]
        return tuple(steps)


def _can_page(instance: Instance, value: int) -> bool:
    problem, name = instance.problem, instance.values[value]
    return problem.paging and name in problem.costs.page_out and name in problem.costs.page_in


def estimate_size(instance: Instance) -> int:
    """Return about how many variables the program will have, without building it."""
    horizon = find_horizon(instance)
    count = 0
    for position in range(len(instance.nodes)):
        stages = horizon.last_run[position] - position + 1
        count += stages * (2 + len(instance.reads[position]) + len(instance.writes[position]))
    for value, producer in enumerate(instance.producer):
        count += (horizon.last_need[value] - producer) * (4 if _can_page(instance, value) else 1)
    return count


def paper_form(instance: Instance, limits: Limits) -> PaperForm:
    """Build the program."""
    form = PaperForm(instance, limits, find_horizon(instance))
    _add_variables(form)
    _add_presence_rows(form)
    if limits.budget_bytes is not None:
        for stage in range(len(instance.nodes)):
            _add_memory_rows(form, stage, limits.budget_bytes / SCALE)
    deadline = limits.deadline_seconds
    if deadline is not None:
        terms = {variable: instance.seconds[position] / deadline for (_, position), variable in form.run.items()}
        form.model.at_most(terms, 1.0 - (instance.base_seconds - sum(instance.seconds)) / deadline)
    return form


def _add_variables(form: PaperForm) -> None:
    instance, horizon, model = form.instance, form.horizon, form.model
    costs, unit = instance.problem.costs, instance.problem.base_joules / SCALE
    wait_watts = 0.0 if costs.asynchronous else costs.idle_watts
    for position in range(len(instance.nodes)):
        joules = instance.joules[position] + costs.idle_watts * instance.seconds[position]
        for stage in range(position, horizon.last_run[position] + 1):
            form.run[stage, position] = model.choice(joules / unit, fixed=stage == position)
    for value, name in enumerate(instance.values):
        kept = value in instance.kept
        first = instance.producer[value] + 1
        last = len(instance.nodes) - 1 if kept else horizon.last_need[value]
        for stage in range(first, last + 1):
            form.held[stage, value] = model.choice(fixed=kept)
        if kept or not _can_page(instance, value):
            continue
        out, back = (one.joules + wait_watts * one.seconds for one in (costs.page_out[name], costs.page_in[name]))
        for stage in range(first, last - 1):
            form.leaving[stage, value] = model.choice(out / unit)
        for stage in range(first + 1, last):
            form.stored[stage, value] = model.choice()
            form.arriving[stage, value] = model.choice(back / unit)


def _sum(*variables: int | None) -> dict[int, float]:
    return {variable: -1.0 for variable in variables if variable is not None}


def _add_presence_rows(form: PaperForm) -> None:
    """Add what must be where: rows 1b to 1f of the paper."""
    instance, model = form.instance, form.model
    for (stage, position), variable in form.run.items():
        for value in instance.reads[position]:
            sources = _sum(form.run.get((stage, instance.producer[value])), form.held.get((stage, value)))
            model.at_most({variable: 1.0, **sources}, 0.0)
    for (stage, value), variable in form.held.items():
        before = stage - 1
        sources = _sum(
            form.run.get((before, instance.producer[value])),
            form.held.get((before, value)),
            form.arriving.get((before, value)),
        )
        model.at_most({variable: 1.0, **sources}, 0.0)
    for (stage, value), variable in form.stored.items():
        sources = _sum(form.stored.get((stage - 1, value)), form.leaving.get((stage - 1, value)))
        model.at_most({variable: 1.0, **sources}, 0.0)
        model.at_most({form.arriving[stage, value]: 1.0, variable: -1.0}, 0.0)
    for (stage, value), variable in form.leaving.items():
        model.at_most({variable: 1.0, form.held[stage, value]: -1.0}, 0.0)


def _add_memory_rows(form: PaperForm, stage: int, unit: float) -> None:
    """Add U of one stage: the bytes at its start and while each of its nodes runs."""
    instance, model = form.instance, form.model
    level: dict[int, float] = {}
    tables = ((form.held, None), (form.stored, versions.TOKEN_BYTES), (form.leaving, versions.TOKEN_BYTES))
    for value, size in enumerate(instance.sizes):
        for table, size_bytes in tables:
            if (stage, value) in table:
                level[table[stage, value]] = (size if size_bytes is None else size_bytes) / unit
    current = model.level(SCALE)
    model.equal({current: -1.0, **level}, 0.0)
    for position in range(stage + 1):
        variable = form.run.get((stage, position))
        if variable is None:
            continue
        touched = (*instance.reads[position], *instance.writes[position])
        free = {value: _add_free(form, stage, value, position) for value in touched}
        made = sum(instance.sizes[value] for value in instance.writes[position])
        during, behind = model.level(None), model.level(SCALE)
        model.equal({current: 1.0, variable: made / unit, during: -1.0}, 0.0)
        workspace = instance.workspace[position]
        if stage > position:
            workspace += instance.problem.graph.scratch_bytes(instance.nodes[position])
        own = {during: 1.0, variable: workspace / unit}
        model.at_most({**own, **_taken_over(form, position, free, unit)}, SCALE)
        freed = {flag: -instance.sizes[value] / unit for value, flag in free.items()}
        model.equal({during: 1.0, behind: -1.0, **freed}, 0.0)
        current = behind


def _add_free(form: PaperForm, stage: int, value: int, position: int) -> int:
    """Add FREE[stage, value, position]: 1 only if the node runs and nothing needs the value behind it."""
    instance, model = form.instance, form.model
    free = model.choice()
    hazards = {form.run[stage, position]: -1.0}
    constant = 1.0
    if (stage + 1, value) in form.held:
        hazards[form.held[stage + 1, value]] = 1.0
    if value in instance.kept and stage == len(instance.nodes) - 1:
        constant += 1.0
    for use in instance.uses[value]:
        if use > position and (stage, use) in form.run:
            hazards[form.run[stage, use]] = 1.0
    # 1 - FREE <= hazards, and hazards <= most * (1 - FREE).
    model.at_most({free: -1.0, **{variable: -sign for variable, sign in hazards.items()}}, constant - 1.0)
    most = constant + sum(1.0 for sign in hazards.values() if sign > 0)
    model.at_most({free: most, **hazards}, most - constant)
    return free


def _taken_over(form: PaperForm, position: int, free: dict[int, int], unit: float) -> dict[int, float]:
    """Return what outputs save by taking over inputs that are dropped: each output one input, each input once."""
    instance, model = form.instance, form.model
    heirs: dict[int, list[int]] = {}
    claimed: set[int] = set()
    for read, written in instance.inplace[position]:
        if read not in claimed:
            claimed.add(read)
            heirs.setdefault(written, []).append(read)
    saved = {}
    for written, reads in heirs.items():
        flag = free[reads[0]]
        if len(reads) > 1:
            flag = model.level(1.0)
            model.at_most({flag: 1.0, **{free[read]: -1.0 for read in reads}}, 0.0)
        saved[flag] = -instance.sizes[written] / unit
    return saved
