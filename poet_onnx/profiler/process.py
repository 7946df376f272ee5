"""Measures what a training process takes on this machine besides the tensors of its step."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from poet_onnx.costing.device import DeviceProfile
from poet_onnx.costing.measured import ProcessMeasurement
from poet_onnx.costing.process import CALLS
from poet_onnx.costing.process_costs import ProcessCosts
from poet_onnx.errors import InputError
from poet_onnx.passes.metadata import read_settings
from poet_onnx.rewriting.options import RewriteOptions
from poet_onnx.rewriting.process import versions_of
from poet_onnx.rewriting.rewrite import rewrite
from poet_onnx.verification.process import train, training_job, write_random_parameters

STEPS = 5
"""Steps that the process runs: in the first ones memory is touched."""


def measure_process(
    model_path: str | os.PathLike[str],
    device: DeviceProfile,
    *,
    target: str,
    dims: Mapping[str, int],
    frozen_batch_norm: str,
    threads: int,
    page_dir: str | os.PathLike[str] | None,
) -> ProcessMeasurement | None:
    """Train a model in a fresh process, ordered and with AdamW in its step, and return what it took.

    What a session takes for each node and value, and what paging takes, are sizes of the runtime's own structures, not
    of a machine: they come from the device's profile. All that is left of the peak is the session's. The process makes
    none of the calls beside the step, so their lines come on top of that.

    Args:
        model_path: a training model, as for `rewrite`.
        device: whose profile says what is not measured here; nothing is measured if it does not, or AdamW cannot train
            the model.
        target: as for `rewrite`.
        dims: sizes of named dimensions.
        frozen_batch_norm: as for `rewrite`.
        threads: inside an operator.
        page_dir: existing directory for the page file.

    Raises:
        InputError: the process died.
    """
    known = device.process
    if known is None:
        return None
    try:
        result = rewrite(
            model_path,
            device=device,
            target=target,
            optimizer="adamw",
            dims=dims,
            frozen_batch_norm=frozen_batch_norm,
            threads=threads,
        )
    except InputError:  # its parameters are none that an optimizer of ours can train
        return None
    with tempfile.TemporaryDirectory(prefix="poet-profile-") as scratch:
        path, parameters = Path(scratch, "model.onnx"), Path(scratch, "parameters.safetensors")
        result.save(path)
        write_random_parameters(result.graph, parameters)
        settings = read_settings(result.model)
        job = training_job(result.model, settings, path, parameters, steps=STEPS, threads=threads, page_dir=page_dir)
        trial = train(job, None)
    if trial.figures is None:
        raise InputError(f"A process that trains {os.fspath(model_path)} could not be measured: {trial.ending}.")
    runtime, imports, peak = (trial.figures[key] for key in ("imported_bytes", "import_peak_bytes", "peak_bytes"))
    modelled = {line.name: line.size_bytes for line in result.process.lines}
    others = sum(size for name, size in modelled.items() if name not in ("runtime", "session", *CALLS))
    above = peak - runtime - others
    versions = versions_of(device, RewriteOptions(device=device))
    costs = ProcessCosts.of(device, None, target, threads=threads, versions=versions)
    of_graph = modelled["session"] - costs.session_bytes
    # Where importing takes the most, a session takes what is known of it; where other lines are said to take more than
    # they do, little is left for it, which is none of its own.
    is_seen = peak > imports
    session = max(costs.least_bytes("session_bytes"), above - of_graph) if is_seen else costs.session_bytes
    return ProcessMeasurement(
        runtime_bytes=runtime,
        import_bytes=imports,
        session_bytes=session,
        session_bytes_per_node=known.session_bytes_per_node,
        session_bytes_per_input=known.session_bytes_per_input,
        paging_bytes=known.paging_bytes,
    )
