"""A device profile as a file: written and read again, it is the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from poet_onnx.costing.device import device_names, load_device
from poet_onnx.costing.device_file import device_name, device_toml
from poet_onnx.errors import InputError


@pytest.mark.parametrize("name", device_names())
def test_every_built_in_device_comes_back(tmp_path: Path, name: str) -> None:
    path = tmp_path / "board.toml"
    path.write_text(device_toml(load_device(name), "a copy"), encoding="utf-8")
    assert load_device(path) == load_device(name)
    assert path.read_text(encoding="utf-8").startswith("# a copy\nname = ")


def test_texts_with_what_toml_means(tmp_path: Path) -> None:
    host = load_device("host")
    strange = {**host.sources, "ram_bytes": 'a "quoted" \\ path = [x] # °\n\tnext'}
    path = tmp_path / "board.toml"
    path.write_text(device_toml(host.model_copy(update={"sources": strange})), encoding="utf-8")
    assert load_device(path).sources["ram_bytes"] == strange["ram_bytes"]


def test_a_device_is_called_as_its_file() -> None:
    assert device_name(Path("here/my-pi.5.toml")) == "my-pi.5"
    for file, words in (
        ("board.json", "name end in .toml"),
        ("my board.toml", "'my board' cannot be the name"),
        (f"{'x' * 65}.toml", "up to 64 letters"),
        ("pi5.toml", "built-in device 'pi5': give another name, such as my-pi5.toml"),
    ):
        with pytest.raises(InputError, match=words):
            device_name(Path(file))
