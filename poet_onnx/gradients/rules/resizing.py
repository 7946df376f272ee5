"""The gradient of Resize."""

from __future__ import annotations

from poet_onnx.gradients.builder import GradientBuilder, NoGradientError
from poet_onnx.gradients.registry import gradient_of
from poet_onnx.passes.lowering.builder import UnsupportedError
from poet_onnx.passes.lowering.resizing import resize_gradient


@gradient_of("Resize", stops=(1, 2, 3))
def resize(builder: GradientBuilder) -> None:
    """Multiply along each resized axis with the transposed matrix of the resize; whole repetitions are summed."""
    attributes = builder.attributes
    refused = ("axes", "keep_aspect_ratio_policy")
    mode = attributes.get("coordinate_transformation_mode", "half_pixel")
    if mode == "tf_crop_and_resize" or any(attributes.get(name, 0) not in (0, "stretch") for name in refused):
        raise NoGradientError("it crops, keeps an aspect ratio or names axes")
    before, after = builder.type(builder.input(0)), builder.type(builder.output())
    try:
        gradient = resize_gradient(
            builder, builder.gradient(), before.shape, after.shape, _scales(builder), dtype=after.dtype
        )
    except UnsupportedError as problem:
        raise NoGradientError(str(problem)) from problem
    builder.send(0, gradient)


def _scales(builder: GradientBuilder) -> list[float] | None:
    """Return the scale of each axis, None where the shape is given instead."""
    if builder.has(2) and builder.shape(builder.input(2)) != (0,):
        tensor = builder.input(2).const_value
        known = tensor.numpy() if tensor is not None else builder.known(2)
        if known is None:
            raise NoGradientError("its scales are computed at run time, but must be constants")
        return [float(scale) for scale in known]
    return None
