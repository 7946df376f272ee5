"""Configurations of PEFT that no adapter need be at hand for."""

from __future__ import annotations

import json
from pathlib import Path

from poet_onnx.adapters.peft_config import PeftConfig


def test_a_pattern_of_layers_may_match_without_a_number(tmp_path: Path) -> None:
    """PEFT's own reader ends with a TypeError."""
    path = tmp_path / "adapter_config.json"
    given = {"peft_type": "LORA", "target_modules": ["q"], "layers_to_transform": [1], "layers_pattern": ["|", "l"]}
    path.write_text(json.dumps(given))
    assert [PeftConfig(path).targets(module) for module in ("l.1.q", "l.2.q")] == [True, False]


def test_statistics_of_a_module_that_is_saved_are_not_trained(tmp_path: Path) -> None:
    path = tmp_path / "adapter_config.json"
    path.write_text(json.dumps({"peft_type": "LORA", "modules_to_save": ["orm"]}))
    config, trained = PeftConfig(path), ("body.norm.weight", "body.norm.bias", "norm.inner.weight")
    still = ("body.norm.running_mean", "body.norm.running_var", "normal.weight")
    assert [name for name in (*trained, *still) if config.trains_besides(name)] == [*trained]
