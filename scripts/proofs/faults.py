"""Small faults in the scheduler's rows of time and memory, which the proofs must find: how strong the proofs are."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from operator import attrgetter
from types import FunctionType


@dataclass(frozen=True, slots=True)
class Fault:
    """A change of one function of the scheduler.

    Attributes:
        what: is wrong then.
        function: module and name, with its class if it is a method.
        right, wrong: a piece of the function's text, and what takes its place.
    """

    what: str
    function: str
    right: str
    wrong: str


TOO_STRICT = (
    Fault(
        "a leaver holds its buffer a stage too long",
        "timing.add_footprints",
        "binary=False), end",
        "binary=False), end + 1",
    ),
    Fault(
        "a page-in begins a stage early", "timing.add_footprints", "index] = start", "index] = max(earliest, start - 1)"
    ),
    Fault(
        "waits do not delay page-ins",
        "timing.add_footprints",
        "page_in[name].seconds + timing.wait_seconds",
        "page_in[name].seconds",
    ),
    Fault(
        "waits do not shorten page-outs",
        "timing.add_footprints",
        "page_out[name].seconds - timing.wait_seconds",
        "page_out[name].seconds",
    ),
    Fault(
        "a window ends before its last recomputes",
        "timing.add_time_rows",
        "first, end + 1",
        "first, end",
    ),
    Fault(
        "a window is a stage short",
        "timing.add_time_rows",
        "clock[end] - clock[first]",
        "clock[end - 1] - clock[first]",
    ),
    Fault(
        "a window has no room for waits", "timing.add_time_rows", "clock[first] + timing.wait_seconds", "clock[first]"
    ),
    Fault(
        "a departure is a stage short",
        "channel.add_places",
        "inside, first, end)",
        "inside, first, end - 1)",
    ),
    Fault(
        "an arrival is a stage early",
        "channel.add_places",
        "arrivals[first - 1]",
        "arrivals.get(first - 2, ())",
    ),
    Fault("nothing may arrive early", "channel._arriving", "if release <= stage:", "if release < stage:"),
    Fault(
        "a page-out for a later page-in counts at once",
        "timing.page_outs_inside",
        "(page_in, -seconds)",
        "(page_in, 0.0)",
    ),
    Fault(
        "a page-in may begin a stage too late",
        "timing.page_ins",
        "release = event.stage + 1",
        "release = event.stage + 2",
    ),
    Fault(
        "a window ends before it begins",
        "timing.crowded_windows",
        "if due < first:",
        "if False:",
    ),
    Fault(
        "recomputes make the step later by twice their time",
        "channel._Delays.finish",
        "[variable] = seconds",
        "[variable] = 2 * seconds",
    ),
    Fault(
        "a window has no room for its own waits",
        "channel._Delays.add_window",
        "-self._timing.spare_seconds",
        "0.0",
    ),
    Fault(
        "of a pair, the first one to leave may not wait",
        "channel._add_pairs",
        "times[number] >= clock[other.stage] + busy",
        "times[number] >= clock[other.stage] + 2 * busy",
    ),
    Fault(
        "of a pair, the last one to leave may not wait",
        "channel._add_pairs",
        "bisect_left(times, clock[job.stage] + busy)",
        "bisect_left(times, clock[job.stage] + 2 * busy)",
    ),
    Fault(
        "what waits to be written is in RAM since it was made, although it is read and counted later",
        "stays._pieces",
        "begin, node = event.stage + 1, None if event.main else event.stage",
        "begin, node = event.stage, event.stage",
    ),
    Fault(
        "what is read back was written a stage earlier",
        "stays._add_unwritten",
        "bisect_left(told, event.stage)",
        "max((number for number in pending if told[number] < event.stage), default=0)",
    ),
    Fault(
        "what has been written was not written before",
        "stays._pending",
        "model.require(flags[number - 1], flags[number])",
        "model.require(flags[number], flags[number - 1])",
    ),
    Fault(
        "what has begun to arrive has not begun",
        "stays._add_early",
        "model.require(after, before)",
        "model.require(before, after)",
    ),
    Fault(
        "the spare time is cut",
        "timing.relaxed_timing",
        "deadline_seconds - instance.base_seconds",
        "0.98 * deadline_seconds - instance.base_seconds",
    ),
    Fault(
        "a page-in is in RAM before the recomputes that it may follow",
        "residency._wait",
        "model.arrival[value, index] + 1",
        "model.arrival[value, index]",
    ),
    Fault(
        "what comes in the first stage of a window comes before it",
        "ancestry._Relaxed._since",
        "np.cumsum(levels[::-1])[::-1]",
        "np.cumsum(levels[::-1])[::-1] - levels",
    ),
    Fault(
        "what is there when the stage of a read begins is not there",
        "ancestry._history",
        "retained[begin : event.stage + 1]",
        "retained[begin : event.stage]",
    ),
    Fault(
        "a leaver that stays is in RAM twice",
        "residency._wait",
        "begin = max(begin, end)",
        "begin = begin",
    ),
)
"""Faults that leave plans out: a proof must find one that is in time and refused."""

TOO_WEAK = (
    Fault(
        "page-ins hold no buffer",
        "timing.add_footprints",
        "if start < stage:",
        "if False:",
    ),
    Fault(
        "early buffers take no room",
        "residency._wait",
        "builder.wait(model.page_in[value, index], size",
        "builder.wait(model.page_in[value, index], 0",
    ),
    Fault(
        "what waits to be written takes no room",
        "stays._add_unwritten",
        "Stay(kept, model.candidates.instance.sizes[value]",
        "Stay(kept, 0",
    ),
    Fault(
        "what has begun to arrive takes no room while nodes run",
        "residency.memory_rows",
        "at_node[stay.node_stage][stay.variable] = stay.size_bytes",
        "at_node[stay.node_stage][stay.variable] = 0",
    ),
    Fault(
        "waits of earlier windows are forgotten",
        "channel._Delays.add_window",
        "= self._timing.spare_seconds",
        "= 0.0",
    ),
    Fault(
        "transfers are never paired",
        "channel._add_pairs",
        "if latest >= number and latest",
        "if False and latest",
    ),
    Fault(
        "page-outs do not use the channel",
        "timing.transfer_seconds",
        "(variable, costs.page_out[instance.values[value]].seconds)",
        "(variable, 0.0)",
    ),
    Fault(
        "page-outs have a channel of their own",
        "timing.page_outs_inside",
        "if later is not None:",
        "if False:",
    ),
    Fault(
        "page-ins at a window's begin are missed",
        "timing.page_ins_inside",
        "if release >= first",
        "if release > first",
    ),
    Fault(
        "page-outs of what was read back are missed where transfers are placed",
        "channel._departing",
        "elif later is not None:",
        "elif False:",
    ),
    Fault(
        "departures take half their time",
        "channel._departing",
        "instance.values[value]].seconds\n",
        "instance.values[value]].seconds / 2\n",
    ),
    Fault(
        "departures at a window's begin are missed",
        "channel.add_places",
        "job.stage >= first",
        "job.stage > first",
    ),
    Fault(
        "the first page-in behind an arrival is missed",
        "channel._arriving",
        "if due <= stage or",
        "if due <= stage + 1 or",
    ),
    Fault(
        "windows are never asked for",
        "deadlines._missed",
        "missed.with_rows_of(crowded)",
        "missed",
    ),
)
"""Faults that let plans in which cannot be in time: fewer of them are refused."""


TOO_SURE = (
    Fault(
        "no plan of a model that leaves some out counts as no plan",
        "deadlines.solve_within_deadline",
        'outcome.status == "infeasible" and model.proves',
        'outcome.status == "infeasible"',
    ),
    Fault(
        "a bound of a model that leaves plans out counts",
        "attempt.attempt",
        "if model.proves and outcome.status",
        "if outcome.status",
    ),
)
"""Faults that prove too much: a search over all plans must find one that a proof or a bound denies."""


@contextmanager
def seeded(fault: Fault) -> Iterator[None]:
    """Carry a fault out, and undo it."""
    home, name = fault.function.split(".", 1)
    module = import_module(f"poet_onnx.scheduling.{home}")
    function = attrgetter(name)(module)
    if not isinstance(function, FunctionType):
        raise TypeError(f"{fault.function} is no function")
    text = textwrap.dedent(inspect.getsource(function))
    if text.count(fault.right) != 1:
        raise ValueError(f"{fault.function} has '{fault.right}' {text.count(fault.right)} times; it must be once")
    faulty: dict[str, object] = dict(vars(module))
    exec(compile("from __future__ import annotations\n" + text.replace(fault.right, fault.wrong), home, "exec"), faulty)
    changed = faulty[function.__name__]
    if not isinstance(changed, FunctionType):
        raise TypeError(f"{fault.function} is no function any more")
    before = function.__code__
    # Other modules hold the function itself, so that it is its code that must change.
    function.__code__ = changed.__code__
    try:
        yield
    finally:
        function.__code__ = before
