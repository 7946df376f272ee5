"""Names that a rewritten model and a checkpoint have in common: our domain, keys of metadata, inputs of training."""

from __future__ import annotations

POET_DOMAIN, POET_VERSION = "poet", 1
"""Domain of our own operators, and its version."""

RECOMPUTED = "/recompute_"
"""Between a node's name and the number of its copy, in the name of a copy that a plan recomputes."""

TRAINING_KEY = "poet.training"
"""Key of the metadata that hold a description."""

OUTPUTS_KEY = "poet.outputs"
"""Key of the metadata of an evaluation graph that name, as a list, what the model computes besides the loss.

Such a graph does what it does for inference, its trained parameters are inputs, and all its types are known.
"""

BATCH_KEY = "poet.batch"
"""Key of the metadata of a forward graph that say, as JSON, where its samples are: {"axes": {"x": 0, "scores": 0}}.

Without the metadata the graph is as it was given; {"fixed": "why"} says what keeps it from taking other batches.
"""

NETWORK_KEY = "poet.network"
"""Key of the metadata of a training graph and of an evaluation graph that hold a hash of the network that they are of.

Those that were made elsewhere have none.
"""

EVALUATION_KEY = "poet.evaluation"
"""Key of the metadata that hold the description of an evaluation graph."""

PANELS_KEY = "poet.panels"
"""Key of the metadata that hold a model, in base64, which compares products by panels with whole ones."""

THREADS_KEY = "poet.threads"
"""Key of the metadata that say how many threads inside an operator a rewritten model was planned for."""

UNBIASED_KEY = "poet.unbiased_variance"
"""Key of the metadata of a batch normalization whose running variance is torch's: over n - 1 of n elements."""

STOPS_GRADIENT = "poet.stop_gradient"
"""Key of the metadata of a node through which no gradient flows, whatever its operator."""

TORCH_CALL = "poet.torch_call"
"""Key of the metadata of a node that name the operator of torch, and its overload, that it was written for."""

OWN_PREFIX = "poet/"
"""Names of what training keeps besides parameters begin so: of inputs, and of tensors in a checkpoint."""

METADATA = "__metadata__"
"""What safetensors files call what they hold besides tensors."""

RATES = f"{OWN_PREFIX}rates"
"""Input of every update of no group of parameters: the numbers that an optimizer's `rates` returns."""

RUNS = f"{OWN_PREFIX}runs"
"""Input of what draws random numbers: how often the graph has run before."""

CODES_SUFFIX = "/bytes"
"""What the names of codes of few bits end in, where nodes read them panel by panel."""

SHARED_BYTES = 4 << 10
"""Constants that are so large are there once, where training and evaluation both have them."""


def slot_name(parameter: str, slot: str) -> str:
    """Return the name of what an optimizer keeps for a parameter."""
    return f"{OWN_PREFIX}{slot}/{parameter}"


def rates_name(group: int) -> str:
    """Return the name of the input that the updates of a group of parameters read; that of no group for 0."""
    return f"{RATES}/{group}" if group else RATES


def handle_name(tensor: str) -> str:
    """Return the name of the input that stands for a tensor in a store."""
    return f"{OWN_PREFIX}store/{tensor}"
