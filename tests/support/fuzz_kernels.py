"""Fuzz target from model to kernels: any model of the operators of domain `poet` runs, or ONNX Runtime says why not.

LD_PRELOAD="libasan.so libstdc++.so" python tests/support/fuzz_kernels.py LIBRARY FOLDER SECONDS [FIRST_SEED]
LIBRARY is the operator library, built with AddressSanitizer, which sees what kernels do with the runtime's buffers.
Every model is made from a seed; FOLDER/seed holds the last one, for where the process dies. Models are mostly valid,
with some defects: other types, shapes, attributes, inputs that are missing, that are one buffer or that another node
made.
"""

from __future__ import annotations

import math
import random
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
from onnx import NodeProto, TensorProto, helper
from ops_models import make_model, poet_node

import poet_onnx.ops
from poet_onnx.runtime import session_options

Array = npt.NDArray[np.generic]
Shape = tuple[int, ...]

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
DTYPES = (FLOAT, INT64, BOOL, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.INT32, TensorProto.UINT8)
EDGES = (0, 1, -1, 2, 3, 7, 64, 4096, 1 << 20, 1 << 31, 1 << 40, 1 << 62, -(1 << 63), (1 << 63) - 1)
"""Numbers at which something may go wrong."""

MOST_ELEMENTS = 1 << 24
"""That are declared: where memory is missing, the sanitizer's `operator new` ends the process instead of throwing."""

DEFECT = 0.02
"""Share of things that are not as they should be."""

UPDATES = {"UpdateSgd": (1, 3), "UpdateMomentum": (2, 5), "UpdateAdam": (3, 10)}
"""For each update: how many buffers it changes, and how many elements its rates have."""


class Model:
    """A random model and its inputs.

    Attributes:
        feeds: inputs by name.
        nodes: in order.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._has_plan = self._random.random() < 0.5
        self._types: dict[str, int] = {}
        self._shapes: dict[str, Shape] = {}
        self.feeds: dict[str, Array] = {}
        self.nodes: list[NodeProto] = []
        makers = (
            self._arena,
            self._gate,
            self._page,
            self._accumulate,
            self._rows,
            self._update,
            self._normalize,
            self._normalize_rows,
            self._update_rows,
            self._add_rows,
            self._normalize_by_root,
            self._activate,
            self._rotate,
            self._depthwise,
            self._draw,
            self._drop,
            self._unpool,
            self._rectify,
            self._derive,
            self._exponentiate,
            self._score,
            self._multiply,
            self._lose,
            self._attend,
            self._adapt,
        )
        for _ in range(self._random.randint(1, 5)):
            self._random.choice(makers)()

    def payload(self) -> bytes:
        """Return the model; all that its nodes make are outputs."""
        inputs = [(name, self._types[name], array.shape) for name, array in self.feeds.items()]
        made = [(name, self._types[name], None) for node in self.nodes for name in node.output]
        return make_model(self.nodes, inputs, made)

    def _is_wrong(self) -> bool:
        return self._random.random() < DEFECT

    def _shape(self, rank: int | None = None) -> Shape:
        return tuple(
            self._random.randint(0 if self._is_wrong() else 1, 6) for _ in range(rank or self._random.randint(0, 4))
        )

    def _input(self, dtype: int, shape: Shape, low: int = 0, high: int = 4) -> str:
        """Return a new input or, where it is to be wrong, whatever is there."""
        if self._types and self._is_wrong():
            return self._random.choice(list(self._types))
        if self._is_wrong():
            dtype = self._random.choice(DTYPES)
        if self._is_wrong():
            shape = self._shape()
        name = f"in{len(self.feeds)}"
        numbers = [
            self._random.choice(EDGES) if self._is_wrong() else self._random.randint(low, high)
            for _ in range(math.prod(shape))
        ]
        self._types[name], self._shapes[name] = dtype, shape
        self.feeds[name] = np.array(numbers, np.int64).astype(helper.tensor_dtype_to_np_dtype(dtype)).reshape(shape)
        return name

    def _number(self, number: int) -> int:
        return self._random.choice(EDGES) if self._is_wrong() else number

    def _add(
        self, op_type: str, inputs: list[str], outputs: list[tuple[int, Shape]], **attributes: float | Shape
    ) -> list[str]:
        """Add a node, and return the names of what it makes."""
        if len(inputs) > 1 and self._is_wrong():
            inputs.pop(self._random.randrange(len(inputs)))
        if self._types and self._is_wrong():
            inputs.insert(self._random.randint(0, len(inputs)), self._random.choice(list(self._types)))
        given: dict[str, Any] = {}
        for name, value in attributes.items():
            if isinstance(value, int):
                given[name] = self._number(value)
            elif isinstance(value, float):
                given[name] = value
            else:
                given[name] = [self._number(size) for size in value]
                if self._is_wrong():
                    given[name] = self._shape()
        if math.prod(map(abs, given.get("shape", ()))) > MOST_ELEMENTS:
            given["shape"] = attributes["shape"]
        if given.get("region_bytes", 0) > MOST_ELEMENTS:
            given["region_bytes"] = attributes["region_bytes"]
        if given and self._is_wrong():
            given.pop(self._random.choice(list(given)))
        names = [f"out{len(self.nodes)}_{index}" for index in range(len(outputs))]
        self.nodes.append(poet_node(op_type, inputs, names, **given))
        for name, (dtype, shape) in zip(names, outputs, strict=True):
            self._types[name], self._shapes[name] = dtype, shape
        return names

    def _arena(self) -> None:
        """Serve what follows from a region; its layout knows nothing of the nodes, so that it fits by chance alone."""
        steps = self._random.randint(1, 8)
        layout: list[int] = []
        for step in range(steps):
            count = self._random.randint(0, 3)
            layout += [64 * self._random.randint(0, 7), self._random.choice((0, 64)), count]
            for _ in range(count):
                offset = self._random.choice((-1, *range(0, 512, 64)))
                layout += [offset, 4 * self._random.randint(1, 16), self._random.randint(step, steps - 1)]
        name = self._input(FLOAT, self._shape())
        self._add("Arena", [name], [(BOOL, (1,))], region_bytes=512, layout=tuple(layout))

    def _gate(self) -> None:
        name = self._input(self._random.choice(DTYPES), self._shape())
        self._add("Gate", [name], [(self._types[name], self._shapes[name])])

    def _page(self) -> None:
        """Page something out and in, now and then with a token from elsewhere or without the second half."""
        name = self._input(self._random.choice(DTYPES), self._shape())
        dtype, shape = self._types[name], self._shapes[name]
        size = math.prod(shape) * helper.tensor_dtype_to_np_dtype(dtype).itemsize
        slot = self._random.randint(0, 2)
        plan = {"bytes": size, "plan_slots": 3, "plan_bytes": 3 * 4096} if self._has_plan else {}
        whole = self._random.random() < 0.5
        (token,) = self._add("PageOut" if whole else "PageOutStart", [name], [(INT64, (1,))], slot=slot, **plan)
        if not whole and not self._is_wrong():
            (token,) = self._add("PageOutEnd", [token, name], [(INT64, (1,))])
        if self._is_wrong():
            token = self._input(INT64, (1,), high=1 << 40)
        for _ in range(self._random.randint(0, 2)):
            declared = {"slot": slot, "dtype": dtype, "shape": shape}
            if self._random.random() < 0.5:
                self._add("PageIn", [token], [(dtype, shape)], **declared)
                continue
            raw, ticket = self._add("PageInStart", [token], [(dtype, shape), (INT64, (1,))], **declared)
            if not self._is_wrong():
                self._add("PageInEnd", [raw, ticket], [(dtype, shape)])

    def _accumulate(self) -> None:
        shape = self._shape()
        size = math.prod(shape)
        offset = self._random.randint(0, size)
        part = self._input(FLOAT, (size - offset,))
        inputs = [self._input(FLOAT, shape), part, self._input(BOOL, (1,), high=1)]
        self._add("Accumulate", inputs, [(BOOL, (1,))], offset=offset)

    def _rows(self) -> None:
        rows, width, count = self._shape(1)[0], self._shape(1)[0], self._random.randint(0, 5)
        inputs = [
            self._input(FLOAT, (rows, width)),
            self._input(INT64, (count,), high=max(0, rows - 1)),
            self._input(FLOAT, (count, width)),
            self._input(BOOL, (1,), high=1),
        ]
        self._add("AccumulateRows", inputs, [(BOOL, (1,))])

    def _update(self) -> None:
        shape = self._shape()
        op_type = self._random.choice(list(UPDATES))
        size = math.prod(shape)
        offset = self._random.randint(0, size)
        buffers, rates = UPDATES[op_type]
        inputs = [self._input(FLOAT, (size - offset,)), self._input(FLOAT, (rates,))]
        inputs += [self._input(FLOAT, shape) for _ in range(buffers)]
        self._add(op_type, inputs, [(BOOL, (1,))], offset=offset)

    def _add_rows(self) -> None:
        rows, width, given = self._shape(1)[0], self._shape(1)[0], self._random.randint(0, 5)
        first = self._random.randint(0, rows)
        inputs = [
            self._input(FLOAT, (rows - first, width)),
            self._input(INT64, (given,), high=max(0, rows - 1)),
            self._input(FLOAT, (given, width)),
        ]
        self._add("AddRows", inputs, [(FLOAT, (rows - first, width))], first=first, rows=rows)

    def _update_rows(self) -> None:
        op_type = self._random.choice(list(UPDATES))
        rows, width, count = self._shape(1)[0], self._shape(1)[0], self._random.randint(0, 5)
        buffers, rates = UPDATES[op_type]
        inputs = [self._input(FLOAT, (count, width)), self._input(FLOAT, (rates,))]
        inputs += [self._input(FLOAT, (rows, width)) for _ in range(buffers)]
        inputs.append(self._input(INT64, (count,), high=max(0, rows - 1)))
        self._add(op_type.replace("Update", "UpdateRows"), inputs, [(BOOL, (1,))])

    def _normalize(self) -> None:
        shape = self._shape(self._random.randint(2, 5))
        channels = (shape[1],)
        x, scale = self._input(FLOAT, shape), self._input(FLOAT, channels)
        numbers = [self._input(FLOAT, channels) for _ in range(3)]
        made = [(FLOAT, shape), (FLOAT, channels), (FLOAT, channels)]
        _, mean, inverse = self._add("BatchNormalize", [x, scale, *numbers, self._input(FLOAT, (3,))], made)
        self._add("BatchNormalizeGradient", [self._input(FLOAT, shape), x, scale, mean, inverse], made)

    def _normalize_rows(self) -> None:
        shape = self._shape(self._random.randint(1, 4))
        axis = self._random.randrange(len(shape))
        per_row = shape[:axis] + (1,) * (len(shape) - axis)
        kinds = (shape, shape, shape[axis:], per_row, per_row)
        made = [(FLOAT, shape), (FLOAT, shape[axis:]), (FLOAT, shape[axis:])]
        self._add("LayerNormalizeGradient", [self._input(FLOAT, kind) for kind in kinds], made)

    def _normalize_by_root(self) -> None:
        shape = self._shape(self._random.randint(1, 4))
        rows = (*shape[:-1], 1)
        x, scale = self._input(FLOAT, shape), self._input(FLOAT, shape[-1:])
        _, inverse = self._add("RmsNormalize", [x, scale], [(FLOAT, shape), (FLOAT, rows)], epsilon=0.5)
        d_y = self._input(FLOAT, shape)
        self._add("RmsNormalizeGradient", [d_y, x, scale, inverse], [(FLOAT, shape)])
        self._add("RmsNormalizeScaleGradient", [d_y, x, inverse], [(FLOAT, shape[-1:])])

    def _activate(self) -> None:
        shape, kind = self._shape(), self._random.randint(0, 2)
        d_y, gate, up = (self._input(FLOAT, shape) for _ in range(3))
        self._add("GatedActivate", [gate, up], [(FLOAT, shape)], activation=kind)
        self._add("GatedActivateGradient", [d_y, gate, up], [(FLOAT, shape)] * 2, activation=kind)

    def _rotate(self) -> None:
        shape = self._shape(self._random.randint(1, 4))
        rotated = 2 * self._random.randint(1, 3)
        shape = (*shape[:-1], rotated + self._random.randint(0, 2))
        sizes = tuple(self._random.choice((1, size)) for size in shape[self._random.randrange(len(shape)) : -1])
        tables = [self._input(FLOAT, (*sizes, self._random.choice((rotated, rotated // 2)))) for _ in range(2)]
        how = {name: self._random.randint(0, 1) for name in ("interleaved", "inverse")}
        how["heads"] = shape[-2] * self._random.randint(0, 1) if len(shape) > 1 else 0
        shape = (*shape[:-2], shape[-2] * shape[-1]) if how["heads"] else shape
        self._add("Rotate", [self._input(FLOAT, shape), *tables], [(FLOAT, shape)], rotated=rotated, **how)

    def _rectify(self) -> None:
        shape = self._shape()
        inputs = [self._input(FLOAT, shape), self._input(FLOAT, shape), self._input(FLOAT, ())]
        self._add("RectifierGradient", inputs, [(FLOAT, shape)])

    def _derive(self) -> None:
        shape = self._shape()
        biased = self._random.randint(0, 1) if shape else 0
        inputs = [self._input(FLOAT, each) for each in [shape, shape, shape[-1:]][: 2 + biased]]
        kind = self._random.randint(0, 2)
        self._add("ActivationGradient", inputs, [(FLOAT, shape)], activation=kind, biased=biased)
        self._add("SoftmaxGradient", inputs[:2], [(FLOAT, shape)])

    def _exponentiate(self) -> None:
        shape = self._shape()
        self._add("Exponentiate", [self._input(FLOAT, shape)], [(FLOAT, shape)])

    def _score(self) -> None:
        shape = self._shape(self._random.randint(2, 4))
        each = (shape[0], *shape[2:])
        inputs = [self._input(FLOAT, shape), self._input(INT64, each, high=max(0, shape[1] - 1))]
        inputs.append(self._input(FLOAT, self._random.choice(((), each))))
        self._add("CrossEntropyGradient", inputs, [(FLOAT, shape)])

    def _multiply(self) -> None:
        """Multiply with a matrix of few bits, or take rows of it."""
        bits, block = self._random.choice((4, 8)), 2 * self._random.randint(1, 4)
        rows, columns = self._random.randint(1, 6), 2 * self._random.randint(1, 6)
        blocks = -(-columns // min(block, columns))
        zeroed = self._random.randint(0, 1)
        parts = [self._input(TensorProto.UINT8, (rows, columns * bits // 8)), self._input(FLOAT, (rows, blocks))]
        parts += [self._input(TensorProto.UINT8, (-(-rows * blocks * bits // 8),))] if zeroed else []
        quantized = {"bits": bits, "block": block, "signed": self._random.randint(0, 1), "zeroed": zeroed}
        samples = self._shape()
        if self._random.random() < 0.5:
            ids = self._input(INT64, samples, high=rows - 1)
            made = [(FLOAT, (*samples, columns))]
            self._add("GatherQuantized", [ids, *parts], made, matrix=(rows, columns), **quantized)
            return
        transposed, biased = self._random.randint(0, 1), self._random.randint(0, 1)
        taken, width = (columns, rows) if transposed else (rows, columns)
        inputs = [self._input(FLOAT, (*samples, taken)), *parts, *([self._input(FLOAT, (width,))] if biased else [])]
        how = {"panel_rows": 128, "transposed": transposed, "biased": biased, **quantized}
        self._add("LinearQuantized", inputs, [(FLOAT, (*samples, width))], matrix=(rows, columns), **how)

    def _lose(self) -> None:
        """Take a loss of words, of floats that lie in rows or columns or of few bits."""
        words, width = self._random.randint(1, 6), 2 * self._random.randint(1, 3)
        tokens, numbers = self._shape(), {"bits": 32, "transposed": self._random.randint(0, 1)}
        inputs = [self._input(FLOAT, (*tokens, width)), self._input(INT64, tokens, low=-1, high=words - 1)]
        if self._random.random() < 0.5:
            inputs.append(self._input(FLOAT, (words, width) if numbers["transposed"] else (width, words)))
        else:
            inputs += [self._input(TensorProto.UINT8, (words, width)), self._input(FLOAT, (words, 1))]
            numbers |= {"bits": 8, "transposed": 1, "block": 8, "signed": 1, "zeroed": 0}
        biased = self._random.randint(0, 1)
        inputs += [self._input(FLOAT, (words,))] * biased
        capped = self._random.randint(0, 1)
        inputs += [self._input(FLOAT, (), low=1)] * capped
        numbers |= {
            "panel_rows": self._random.randint(1, 6),
            "biased": biased,
            "capped": capped,
            "ignoring": 1,
            "ignore_index": -1,
        }
        made = [(FLOAT, ()), (FLOAT, (*tokens, width))]
        if self._random.random() < 0.5:
            self._add("VocabularyLossGradient", inputs, made, matrix=(words, width), **numbers)
        else:
            self._add("VocabularyLoss", inputs, made[:1], matrix=(words, width), **numbers)

    def _attend(self) -> None:
        """Take attention of a few heads, and its gradient."""
        batch, groups, tokens, keys, width = (self._random.randint(1, 3) for _ in range(5))
        heads, first = groups * self._random.randint(1, 2), [self._random.randint(0, 1) for _ in range(4)]
        sizes = [(heads, tokens), (groups, keys), (groups, keys), (heads, tokens)]
        shapes = [(batch, *(size[::-1] if flag else size), width) for size, flag in zip(sizes, first, strict=True)]
        in_rows = [size[0] * flag * self._random.randint(0, 1) for size, flag in zip(sizes, first, strict=True)]
        shapes = [
            (batch, shape[1], number * width) if number else shape
            for number, shape in zip(in_rows, shapes, strict=True)
        ]
        masked = self._random.randint(0, 1)
        inputs = [self._input(FLOAT, shape) for shape in shapes[:3]]
        inputs += [self._input(FLOAT, (2,), low=1), *[self._input(FLOAT, (batch, 1, tokens, keys))] * masked]
        flags = {"capped": self._random.randint(0, 1), "masked": masked, "guarded": self._random.randint(0, 1)}
        flags["block_rows"] = self._random.randint(1, 3)
        layout = {"tokens_first": tuple(first), "heads": tuple(in_rows)}
        self._add("Attend", inputs, [(FLOAT, shapes[3])], **layout, **flags)
        made = [(FLOAT, shape) for shape in shapes[:3]]
        self._add("AttendGradient", [self._input(FLOAT, shapes[3]), *inputs], made, **layout, **flags)

    def _adapt(self) -> None:
        """Add an adapter, and make its gradients."""
        rows, (taken, rank, made) = self._shape(), (self._random.randint(1, 6) for _ in range(3))
        x, scale = self._input(FLOAT, (*rows, taken)), self._input(FLOAT, ())
        first, second = self._input(FLOAT, (taken, rank)), self._input(FLOAT, (rank, made))
        biased, added = self._random.randint(0, 1), self._random.randint(0, 2)
        inputs = [self._input(FLOAT, (*rows, made)), x, first, second, scale]
        inputs += [self._input(FLOAT, (made,))] * biased
        outputs = [(FLOAT, (*rows, made)), (FLOAT, (*rows, rank))]
        y, low = self._add("AddLowRank", inputs, outputs, biased=biased, rank=rank, transposed=0)
        inputs = [x, y, first, second, scale]
        self._add("AddLowRank", inputs, [(FLOAT, (*rows, taken)), outputs[1]], biased=0, rank=rank, transposed=1)
        weights = [(FLOAT, (taken, rank)), (FLOAT, (rank, made))]
        if self._random.random() < 0.5:
            self._add("AddLowRankWeightGradient", [y, x, low, second, scale], weights)
            return
        terms = [self._input(FLOAT, (*rows, taken)) for _ in range(added)]
        inputs = [*terms, y, x, low, first, second, scale]
        self._add("AddLowRankGradient", inputs, [(FLOAT, (*rows, taken)), *weights], added=added)

    def _drop(self) -> None:
        shape = self._shape()
        dtype = self._random.choice((FLOAT, 11))
        inputs = [self._input(dtype, shape), self._input(FLOAT, (), high=0), self._input(INT64, (1,))]
        self._add("CountedDropout", inputs, [(dtype, shape), (BOOL, shape)], seed=self._random.randint(0, 9))

    def _draw(self) -> None:
        shape, seed, first, second = (
            self._shape(),
            self._random.randint(-9, 9),
            *(self._random.random() for _ in range(2)),
        )
        names = self._random.choice((("CountedUniform", "low", "high"), ("CountedNormal", "mean", "scale")))
        numbers = {names[1]: first, names[2]: second}
        self._add(names[0], [self._input(INT64, (1,))], [(FLOAT, shape)], seed=seed, shape=tuple(shape), **numbers)

    def _unpool(self) -> None:
        shape = self._shape(self._random.randint(3, 5))
        sizes = [self._random.randint(1, 4) for _ in shape[2:]]
        lists = ("kernel", 1, 3), ("strides", 1, 3), ("dilations", 1, 2), ("begins", 0, 2)
        window = {name: [self._random.randint(least, most) for _ in sizes] for name, least, most in lists}
        pooled = (*shape[:2], *sizes)
        self._add(
            "MaxPoolTaps",
            [self._input(FLOAT, shape)],
            [(FLOAT, pooled), (TensorProto.UINT8, pooled)],
            pixels=sizes,
            **window,
        )
        inputs = [self._input(FLOAT, pooled), self._input(TensorProto.UINT8, pooled, high=math.prod(window["kernel"]))]
        self._add("MaxPoolGradient", inputs, [(FLOAT, shape)], image=list(shape[2:]), **window)

    def _depthwise(self) -> None:
        n, channels, rows, columns = self._shape(4)
        filters = channels * self._random.randint(1, 2)
        gradient = self._input(FLOAT, (n, filters, rows, columns))
        kernel, strides, dilations = (tuple(self._random.randint(1, 3) for _ in range(2)) for _ in range(3))
        reach = [
            s * (size - 1) + d * (k - 1) + 1
            for size, k, s, d in zip((rows, columns), kernel, strides, dilations, strict=True)
        ]
        begins = tuple(self._random.randint(0, max(0, size // 2)) for size in reach)
        x = self._input(
            FLOAT, (n, channels, *(max(1, size - begin) for size, begin in zip(reach, begins, strict=True)))
        )
        window = {"kernel": kernel, "strides": strides, "dilations": dilations, "begins": begins}
        self._add("DepthwiseWeightGradient", [gradient, x], [(FLOAT, (channels, 1, *kernel))], **window)
        made = [(FLOAT, (channels, channels, *kernel))]
        strip = {"images": self._random.randint(1, 4), "rows": self._random.randint(1, 4)}
        sizes = {"pixels": (rows, columns), "group": self._random.randint(1, 3), "columns": self._random.randint(1, 9)}
        self._add("ConvWeightGradient", [gradient, x], made, **window, **sizes, **strip)
        per_group, groups = self._random.randint(1, 3), self._random.choice((1, channels))
        image = tuple(self._random.randint(1, max(1, size)) for size in reach)  # no windows reach nothing
        sizes = {"pixels": (rows, columns), "group": groups, **strip}
        weight, made = self._input(FLOAT, (filters, per_group, *kernel)), [(FLOAT, (n, per_group * groups, *image))]
        self._add("ConvDataGradient", [gradient, weight], made, image=image, **window, **sizes)


def run(seed: int, folder: Path) -> bool:
    """Run a model three times; return whether it ran, or ONNX Runtime refused it."""
    model = Model(seed)
    options = session_options(page_dir=folder)
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(model.payload(), options)
        for _ in range(3):
            session.run(None, model.feeds)
    except Exception as error:  # noqa: BLE001 - ONNX Runtime's exceptions have no other common base
        assert "onnxruntime" in type(error).__module__, error
        return False
    return True


def main() -> None:
    """Run models until the time is over, and say how many ran."""
    library, folder, seconds, *first = sys.argv[1:]
    poet_onnx.ops.__path__.insert(0, str(Path(library).parent))
    end = time.monotonic() + float(seconds)
    seed = start = int(first[0]) if first else 0
    ran = 0
    while time.monotonic() < end:
        Path(folder, "seed").write_text(f"{seed}\n", encoding="utf-8")
        ran += run(seed, Path(folder))
        seed += 1
    sys.stdout.write(f"models: {seed - start}, ran: {ran}\n")


if __name__ == "__main__":
    main()
