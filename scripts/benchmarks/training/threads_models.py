"""The models that threads.py times: those of scripts/models.py, with pictures of any size."""

from __future__ import annotations

import functools
from dataclasses import replace

from models import RECIPES, Recipe, images

MODELS = ("mobilenet:8:64", "resnet18:8", "resnet50:1", "vgg16:8", "bert-2:8", "gpt:8", "unet:8", "densenet:8")
"""Name, batch and, where it is not the recipe's, the size of pictures."""

OTHERS = ("vit:8", "inception:8")
"""Models that nobody looked at while kernels were written."""


def recipe(name: str, pixels: int) -> Recipe:
    """Return how to build a model, for pictures of a size; 0 for the recipe's own."""
    return replace(RECIPES[name], inputs=functools.partial(images, pixels)) if pixels else RECIPES[name]


def read_case(case: str) -> tuple[str, int, int]:
    """Return name, batch and size of pictures of a case such as mobilenet:8:64; 0 for the recipe's size."""
    name, batch, pixels = (*case.split(":"), *("1", "0")[case.count(":") :])
    return name, int(batch), int(pixels)
