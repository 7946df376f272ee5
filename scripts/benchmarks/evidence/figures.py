"""The paper's figures and tables as sweeps: the models, devices, budgets, deadlines and methods of each."""

from __future__ import annotations

from dataclasses import dataclass, replace

from poet_onnx.choices import METHODS, ORDERS
from poet_onnx.costing.device import DeviceProfile, load_device

DEVICES = ("m0", "m4", "a72", "tx2")
PAPER = tuple(f"{name}-paper" for name in DEVICES)
ABLATIONS = ("poet", "poet-recompute", "poet-paging")
ALL = tuple(name for name in METHODS if name != "poet-paper")
"""The paper's own program needs hours for one cell; it has a part of its own, on graphs that it can finish."""

PARTS = "1MiB"
"""Weight gradients larger than this are computed in parts: whole, they are most of the peak; the paper counts none."""

LADDER = (0.75, 0.5, 0.1)
"""Budgets: places between the smallest one that works, 0, and the peak of the ordered step, 1."""


@dataclass(frozen=True)
class Figure:
    """A sweep over some models.

    Attributes:
        models: names in scripts/models.py, with the batch size.
        devices: profiles.
        places: of the budgets on the ladder.
        deadlines: in units of the time of computing once, or none.
        methods: by name.
        picture: that shows it; empty for a table.
        orders: of the nodes, as in `poet_onnx.compare`.
        time_limit_seconds: of each cell.
    """

    models: tuple[tuple[str, int], ...]
    devices: tuple[DeviceProfile, ...]
    places: tuple[float, ...]
    deadlines: tuple[str, ...]
    methods: tuple[str, ...]
    picture: str = ""
    orders: tuple[str, ...] = ("best",)
    time_limit_seconds: float = 10.0

    def reduced(self) -> Figure:
        """Return its first model and device, and every other budget and deadline."""
        return replace(
            self,
            models=self.models[:1],
            devices=self.devices[:1],
            places=self.places[1::2] or self.places,
            deadlines=self.deadlines[::2],
        )


def _profiles(*names: str) -> tuple[DeviceProfile, ...]:
    return tuple(map(load_device, names))


def _changed(name: str, factor: float, *, field: str) -> DeviceProfile:
    """Return an A72 whose storage has a number that is larger by a factor."""
    device = load_device("a72")
    assert device.storage is not None
    numbers = [field] if field == "watts" else [f"page_{way}_bytes_per_second" for way in ("out", "in")]
    values = {number: factor * getattr(device.storage, number) for number in numbers}
    return device.model_copy(update={"name": name, "storage": device.storage.model_copy(update=values)})


def _slow_elementwise() -> DeviceProfile:
    device = load_device("a72")
    rate = device.compute.elementwise_flops_per_second / 1000
    return device.model_copy(
        update={
            "name": "a72-slow-elementwise",
            "compute": device.compute.model_copy(update={"elementwise_flops_per_second": rate}),
        }
    )


RATES = (0.1, 0.3, 1.0, 3.0, 10.0)


def figures() -> dict[str, Figure]:
    """Return every figure and table by name, those that matter most first."""
    fig3 = {
        f"fig3-{model}": Figure(((model, 1),), _profiles(*DEVICES, *PAPER), LADDER, ("none",), ALL, "energy")
        for model in ("resnet18", "vgg16", "bert-2")
    }
    return {
        "fig3-resnet18": fig3["fig3-resnet18"],
        "table3": Figure(
            (("resnet18", 1),),
            _profiles("tx2"),
            (0.9, 0.75, 0.6, 0.45, 0.3, 0.15, 0.0),
            ("none", "1.02x"),
            ("poet", "pofo"),
        ),
        "fig4": Figure(
            (("vgg16", 8), ("vgg16", 1)),
            _profiles("a72"),
            (0.25,),
            ("1x", "1.02x", "1.05x", "1.1x", "1.3x", "none"),
            ABLATIONS,
            "deadlines",
        ),
        "fig5": Figure(
            (("resnet18", 1),),
            _profiles("a72", "a72-paper"),
            (0.75, 0.5, 0.25, 0.1, 0.0),
            ("none",),
            ("poet", "capuchin"),
            "overhead",
        ),
        "table1": Figure(
            (("unet", 1),),
            (
                load_device("a72"),
                _slow_elementwise(),
                _changed("a72-frugal-storage", 1 / 30, field="watts"),
            ),
            (0.5, 0.25),
            ("none",),
            ALL,
        ),
        "poet-paper": Figure(
            (("mlp-bce", 256), ("mlp-mse", 1024)),
            _profiles("a72", "tx2", "a72-paper"),
            (0.75, 0.1),
            ("1x", "1.1x", "1.3x", "none"),
            ("poet", "poet-paper"),
            time_limit_seconds=60.0,
        ),
        "order": Figure(
            (("resnet18", 1), ("bert-2", 1), ("vgg16", 1)),
            _profiles("a72"),
            LADDER,
            ("none",),
            ("poet", "poet-recompute", "checkmate", "capuchin", "dtr"),
            orders=ORDERS,
        ),
        "longer": Figure(
            (("resnet18", 1), ("bert-2", 1)),
            _profiles("a72"),
            (0.5,),
            ("none",),
            ("poet", "poet-recompute", "checkmate"),
            time_limit_seconds=120.0,
        ),
        "fig3-vgg16": fig3["fig3-vgg16"],
        "fig3-bert-2": fig3["fig3-bert-2"],
        "map": Figure(
            (("resnet18", 1), ("resnet18", 8)),
            tuple(_changed(f"a72-storage-{rate:g}x", rate, field="rate") for rate in RATES),
            (0.25,),
            ("none",),
            ABLATIONS,
        ),
        "branching": Figure(
            (("densenet", 1), ("inception", 1), ("unet", 4), ("gpt", 1), ("mobilenet", 1), ("vit", 1)),
            _profiles("tx2"),
            (0.6, 0.2),
            ("none",),
            ALL,
            time_limit_seconds=60.0,
        ),
    }
