"""The geometry of windows that slide over an image: kernel, strides, pads and dilations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat

from poet_onnx.graph.operators.windows import follows_size, reach_of, split_padding
from poet_onnx.passes.node_builder import NodeBuilder


@dataclass(frozen=True)
class Window:
    """A sliding window; every tuple has one entry for each spatial dimension.

    Attributes:
        kernel: taps.
        strides: from one window to the next.
        dilations: from one tap to the next.
        begins, ends: padding before and after the image; what no window reaches is left out of `ends`, and what a last
            window reaches behind the padding is in it.
        padded: padding after the image, reached or not.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begins: tuple[int, ...]
    ends: tuple[int, ...]
    padded: tuple[int, ...]

    @property
    def attributes(self) -> dict[str, tuple[int, ...]]:
        """Return those of a node of ours that slides so."""
        return {name: getattr(self, name) for name in ("kernel", "strides", "dilations", "begins")}

    @property
    def extent(self) -> tuple[int, ...]:
        """Return the pixels from the first to the last tap."""
        return tuple(d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilations, strict=True))

    @property
    def is_point(self) -> bool:
        """Return whether every window is the one pixel of the same place."""
        return all(
            numbers == (expected,) * len(self.kernel)
            for numbers, expected in ((self.kernel, 1), (self.strides, 1), (self.begins, 0), (self.ends, 0))
        )

    def tiles(self, image: Sequence[int], pixels: Sequence[int]) -> bool:
        """Return whether the windows cover the image, each pixel once."""
        covered = all(p * k == i for p, k, i in zip(pixels, self.kernel, image, strict=True))
        return covered and self.strides == self.kernel == self.extent and not any((*self.begins, *self.ends))

    def transposed(self, image: Sequence[int], pixels: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
        """Return pads at the beginning and the end, and output padding, of a ConvTranspose back to the image."""
        begins, ends, extra = [], [], []
        for axis, size in enumerate(image):
            reached = (pixels[axis] - 1) * self.strides[axis] + self.extent[axis]
            beyond = reached - self.begins[axis] - size
            begins.append(self.begins[axis])
            ends.append(max(0, beyond))
            extra.append(max(0, -beyond))
        return begins, ends, extra


def read_window(
    builder: NodeBuilder, image: Sequence[int], pixels: Sequence[int], kernel: Sequence[int] | None = None
) -> Window:
    """Return a node's window.

    Args:
        builder: of a convolution, a pooling or a gradient of one.
        image: spatial dimensions of what the window slides over.
        pixels: number of windows in each dimension.
        kernel: taps; default the attribute.
    """
    rank = len(image)

    def numbers(name: str) -> tuple[int, ...]:
        return tuple(int(number) for number in builder.attributes.get(name, ())) or tuple(repeat(1, rank))

    taps = tuple(kernel) if kernel is not None else numbers("kernel_shape")
    strides, dilations = numbers("strides"), numbers("dilations")
    pads = tuple(int(number) for number in builder.attributes.get("pads", ())) or tuple(repeat(0, 2 * rank))
    automatic = builder.attributes.get("auto_pad", "NOTSET")
    begins, padded = list(pads[:rank]), list(pads[rank:])
    ends = []
    for axis in range(rank):
        reach = reach_of(pixels[axis], taps[axis], strides[axis], dilations[axis])
        if follows_size(automatic):
            begins[axis], padded[axis] = split_padding(automatic, max(0, reach - image[axis]))
        elif automatic == "VALID":
            begins[axis] = padded[axis] = 0
        ends.append(max(0, reach - begins[axis] - image[axis]))
    return Window(taps, strides, dilations, tuple(begins), tuple(ends), tuple(padded))
