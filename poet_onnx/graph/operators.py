"""What operators do to memory and state when ONNX Runtime's CPU kernels run them.

The entries follow the kernels' registrations (`Alias`, `MayInplace`; onnxruntime/core/providers/cpu, contrib_ops/cpu
and orttraining/orttraining/training_ops/cpu in github.com/microsoft/onnxruntime, v1.19.2) and the memory planner
(onnxruntime/core/framework/allocation_planner.cc, FindReusableInput): an alias always shares its input's buffer, an
in-place pair only if this read is the buffer's last and both tensors have the same static shape and element size; a
graph output never shares. tests/test_operators.py measures every entry. Elementwise arithmetic (Add, Mul, Sum, Neg,
...), the gradients of activations, Dropout and Expand are registered without either.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from poet_onnx.graph import AttributeValue

ONNX_DOMAINS = ("", "ai.onnx")
MICROSOFT_DOMAIN = "com.microsoft"
KNOWN_DOMAINS = (*ONNX_DOMAINS, MICROSOFT_DOMAIN, "poet")
"""Domains in which an operator's name says what it does; elsewhere it may do anything."""


@dataclass(frozen=True, slots=True)
class Traits:
    """Properties of an operator.

    Attributes:
        aliases: (input, output) pairs that always share one buffer.
        inplace: (input, output) pairs of which the output may take a dying input's buffer.
        writes: inputs whose buffer the kernel writes: operators of ours always, others only where the aliased output is
            there and no graph output.
        unread: inputs whose values do not influence the outputs, those aliased to them aside.
        random: draws random numbers.
        update: belongs to the update phase: accumulates gradients or changes parameters.
        known: False for an operator that nothing here is known of.
    """

    aliases: tuple[tuple[int, int], ...] = ()
    inplace: tuple[tuple[int, int], ...] = ()
    writes: tuple[int, ...] = ()
    unread: tuple[int, ...] = ()
    random: bool = False
    update: bool = False
    known: bool = True


VIEW = Traits(aliases=((0, 0),))
FIRST_IN_PLACE = Traits(inplace=((0, 0),))
RANDOM = Traits(random=True)
RUNNING_STATISTICS = Traits(aliases=((3, 1), (4, 2)), writes=(3, 4), unread=(3, 4))

ONNX: dict[str, Traits] = {
    **dict.fromkeys(("Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze"), VIEW),
    **dict.fromkeys(("Relu", "LeakyRelu", "Elu", "Selu", "Celu", "ThresholdedRelu", "HardSigmoid"), FIRST_IN_PLACE),
    **dict.fromkeys(("Sigmoid", "Tanh", "Softplus", "Softsign", "Shrink", "Softmax", "LogSoftmax"), FIRST_IN_PLACE),
    **dict.fromkeys(("Clip", "Cast", "Trilu", "ScatterElements"), FIRST_IN_PLACE),
    **dict.fromkeys(("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"), RANDOM),
    **dict.fromkeys(("Multinomial", "Bernoulli", "Dropout"), RANDOM),
}
"""Operators of ONNX with properties of their own."""

MICROSOFT: dict[str, Traits] = {
    "BatchNormInternal": RUNNING_STATISTICS,
    "Trilu": FIRST_IN_PLACE,
    "InPlaceAccumulatorV2": Traits(aliases=((0, 1),), writes=(0,), update=True),
    "InPlaceAccumulator": Traits(aliases=((0, 0),), writes=(0,), update=True),
    "ZeroGradient": Traits(aliases=((0, 0),), writes=(0,), update=True),
    "SGDOptimizer": Traits(aliases=((1, 0), (2, 1)), writes=(1, 2), update=True),
    "AdamOptimizer": Traits(
        aliases=((1, 0), (2, 3), (3, 4), (4, 1), (5, 2), (6, 5)), writes=(1, 2, 3, 4, 5, 6), update=True
    ),
    **dict.fromkeys(("BitmaskDropout", "BiasDropout", "BitmaskBiasDropout", "BiasSoftmaxDropout"), RANDOM),
}
"""Operators of ONNX Runtime with properties of their own."""

POET: dict[str, Traits] = {
    **dict.fromkeys(("Accumulate", "AccumulateRows"), Traits(writes=(0,), update=True)),
    "UpdateSgd": Traits(writes=(2,), update=True),
    "UpdateMomentum": Traits(writes=(2, 3), update=True),
    "UpdateAdam": Traits(writes=(2, 3, 4), update=True),
    "BatchNormalize": Traits(writes=(3, 4), unread=(3, 4)),
}
"""Operators of ours that may stand in a graph before it is planned."""

WITHOUT_CPU_KERNEL = frozenset(
    word
    for line in (
        "ConvTransposeGrad ResizeGrad PadAndUnflatten FlattenAndUnpad ScaledSum BiasSoftmax BiasSoftmaxDropout",
        "BiasDropout BitmaskDropout BitmaskDropoutGrad BitmaskBiasDropout",
    )
    for word in line.split()
)
"""Operators of ONNX Runtime that its gradient builder or its optimizer writes and onnxruntime-training 1.19.2 has no
CPU kernel for."""

NEW_BUFFERS = Traits()
"""Every output has a buffer of its own, and running the operator again gives the same bits."""

UNKNOWN = Traits(known=False)

BUFFER = -1
"""Stands in `ALLOCATION_ORDERS` for a buffer of the kernel's own."""

ALLOCATION_ORDERS: dict[str, tuple[int, ...]] = {"ConvGrad": (1, BUFFER, BUFFER, 2, 0)}
"""Outputs and buffers of its own in the order in which a kernel asks for them, where outputs come in another order than
their own (conv_grad.cc)."""


def traits(domain: str, op_type: str, attributes: Mapping[str, AttributeValue], *, described: bool = True) -> Traits:
    """Return the properties of a node's operator.

    Args:
        domain: of the operator.
        op_type: its name.
        attributes: of the node; BatchNormalization keeps its statistics only with training_mode=1.
        described: False if no shape rule of ours knows the operator; then nothing is promised of it.
    """
    if domain in ONNX_DOMAINS:
        if op_type == "BatchNormalization" and attributes.get("training_mode", 0):
            return RUNNING_STATISTICS
        if op_type in ONNX:
            return ONNX[op_type]
    if domain == "poet" and op_type in POET:
        return POET[op_type]
    if op_type in MICROSOFT and domain in (*ONNX_DOMAINS, MICROSOFT_DOMAIN):
        return MICROSOFT[op_type]
    return NEW_BUFFERS if described else UNKNOWN
