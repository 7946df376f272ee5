"""The work of the command that lists devices."""

from __future__ import annotations

import json

from poet_onnx.cli import tables, terminal
from poet_onnx.costing.device import device_names, load_device
from poet_onnx.errors import InputError


def devices(name: str | None, storage: str | None, as_json: bool) -> None:
    """List the built-in devices, or show every number of NAME (or of a TOML file) with its source.

    Raises:
        InputError: the device cannot be loaded, or a storage is given without one.
    """
    if storage is not None and name is None:
        raise InputError("A kind of storage is one of a device: give the device's NAME, too.")
    if name is not None:
        device = load_device(name, storage)
        if as_json:
            terminal.show_json(device.model_dump_json(indent=2))
        else:
            terminal.show(tables.device_table(device))
        return
    found = [load_device(each) for each in device_names()]
    if as_json:
        terminal.show_json(json.dumps([device.model_dump(mode="json") for device in found], indent=2))
    else:
        terminal.show(tables.devices_table(found))
