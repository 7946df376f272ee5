"""Train adapters with torch and PEFT, and print what it took.

    python quantized_memory_others.py train FOLDER TOKENS OPTIMIZER STEPS
    python quantized_memory_others.py quantize FOLDER OTHER

For quantized_memory.py. FOLDER has a language model as transformers saves it. `quantize` writes it into another folder
with weights of 4 bits of bitsandbytes, beside which adapters are trained as beside floats.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from store_memory_others import measured

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def trained(folder: str, tokens: str, optimizer: str, steps: str) -> dict[str, Any]:
    """Train in this process, and return what it took."""
    return measured(adapters_step(folder, int(tokens), optimizer), int(steps))


def adapters_step(folder: str, tokens: int, optimizer: str) -> Callable[[], None]:
    """Return an eager step of one thread, which trains adapters of rank 8 at every projection."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, use_cache=False)
    config = LoraConfig(r=8, lora_alpha=16, target_modules=list(PROJECTIONS), task_type="CAUSAL_LM")
    module = get_peft_model(model, config).train()
    adapters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    updates = torch.optim.AdamW(adapters) if optimizer == "adamw" else torch.optim.SGD(adapters, lr=1e-3)

    def step() -> None:
        updates.zero_grad()
        ids = torch.randint(500, (1, tokens))
        module(input_ids=ids, labels=ids).loss.backward()
        updates.step()

    return step


def quantize(folder: str, other: str) -> None:
    """Write a model with weights of 4 bits."""
    import torch
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    four_bits = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, quantization_config=four_bits)
    model.save_pretrained(other)


if __name__ == "__main__":
    if sys.argv[1] == "quantize":
        quantize(*sys.argv[2:])
    else:
        print(json.dumps(trained(*sys.argv[2:])))
