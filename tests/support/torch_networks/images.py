"""Networks of pictures: U-Net with group normalization, MobileNetV3, EfficientNet, ConvNeXt."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class NormalizedPair(nn.Module):
    """Two convolutions, each with a group normalization and SiLU behind it."""

    def __init__(self, channels_in: int, channels: int) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            nn.Conv2d(count, channels, 3, padding=1, bias=False) for count in (channels_in, channels)
        )
        self.norms = nn.ModuleList(nn.GroupNorm(4, channels) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """Return features of the same size."""
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = functional.silu(norm(convolution(x)))
        return x


class UNet(nn.Module):
    """Segmentation: two steps down and two up, with shortcuts between them."""

    def __init__(self, classes: int = 3, width: int = 8) -> None:
        super().__init__()
        self.down = nn.ModuleList([NormalizedPair(3, width), NormalizedPair(width, 2 * width)])
        self.bottom = NormalizedPair(2 * width, 4 * width)
        self.up = nn.ModuleList([NormalizedPair(6 * width, 2 * width), NormalizedPair(3 * width, width)])
        self.transposed = nn.ModuleList([nn.Upsample(scale_factor=2), nn.ConvTranspose2d(2 * width, 2 * width, 2, 2)])
        self.scores = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of each pixel."""
        shortcuts = []
        for block in self.down:
            x = block(x)
            shortcuts.append(x)
            x = functional.max_pool2d(x, 2)
        x = self.bottom(x)
        for grow, block in zip(self.transposed, self.up, strict=True):
            x = block(torch.cat([grow(x), shortcuts.pop()], dim=1))
        return self.scores(x)


class SqueezeExcite(nn.Module):
    """Scale channels by what their means say."""

    def __init__(self, channels: int, squeezed: int, inner: nn.Module, gate: nn.Module) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc1, self.fc2 = nn.Conv2d(channels, squeezed, 1), nn.Conv2d(squeezed, channels, 1)
        self.inner, self.gate = inner, gate

    def forward(self, x: Tensor) -> Tensor:
        """Return the scaled channels."""
        return x * self.gate(self.fc2(self.inner(self.fc1(self.pool(x)))))


def normalized(channels_in: int, channels: int, kernel: int, *, act: nn.Module | None, **options: int) -> nn.Sequential:
    """Return a convolution, batch normalization and an activation."""
    layers = [
        nn.Conv2d(channels_in, channels, kernel, padding=kernel // 2, bias=False, **options),
        nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01),
    ]
    return nn.Sequential(*layers, *([act] if act is not None else []))


class StochasticDepth(nn.Module):
    """Drop a whole row of the batch, as torchvision does."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, x: Tensor) -> Tensor:
        """Return the rows that are kept, scaled."""
        if not self.training or self.probability == 0.0:
            return x
        kept = 1.0 - self.probability
        noise = torch.empty([x.shape[0]] + [1] * (x.ndim - 1), dtype=x.dtype, device=x.device)
        return x * noise.bernoulli_(kept).div_(kept)


class InvertedResidual(nn.Module):
    """Widen, filter each channel, squeeze and excite, narrow."""

    def __init__(
        self, channels_in: int, wide: int, channels: int, kernel: int, stride: int, *, act: type[nn.Module],
        gate: type[nn.Module], excite: bool = True, drop: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__()
        layers: list[nn.Module] = []
        if wide != channels_in:
            layers.append(normalized(channels_in, wide, 1, act=act()))
        layers.append(normalized(wide, wide, kernel, act=act(), stride=stride, groups=wide))
        if excite:
            inner = nn.ReLU() if gate is nn.Hardsigmoid else act()
            layers.append(SqueezeExcite(wide, max(4, wide // 4), inner, gate()))
        layers.append(normalized(wide, channels, 1, act=None))
        self.block = nn.Sequential(*layers)
        self.drop = StochasticDepth(drop)
        self.shortcut = stride == 1 and channels_in == channels

    def forward(self, x: Tensor) -> Tensor:
        """Return the features, beside a shortcut where that fits."""
        y = self.block(x)
        return x + self.drop(y) if self.shortcut else y


class MobileNetV3(nn.Module):
    """torchvision's structure, narrow: HardSwish, squeeze and excite with HardSigmoid."""

    def __init__(self, classes: int = 5, dropout: float = 0.0) -> None:
        super().__init__()
        self.features = nn.Sequential(
            normalized(3, 8, 3, act=nn.Hardswish(), stride=2),
            InvertedResidual(8, 8, 8, 3, 2, act=nn.ReLU, gate=nn.Hardsigmoid),
            InvertedResidual(8, 24, 12, 3, 1, act=nn.ReLU, gate=nn.Hardsigmoid, excite=False),
            InvertedResidual(12, 32, 12, 5, 1, act=nn.Hardswish, gate=nn.Hardsigmoid),
            normalized(12, 32, 1, act=nn.Hardswish()),
        )
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        last = (nn.Dropout(dropout), nn.Linear(32, classes))
        self.classifier = nn.Sequential(nn.Linear(32, 32), nn.Hardswish(inplace=True), *last)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of each picture."""
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))


class EfficientNet(nn.Module):
    """torchvision's structure, narrow: SiLU, squeeze and excite, stochastic depth."""

    def __init__(self, classes: int = 5, drop: float = 0.0) -> None:
        super().__init__()
        inverted = {"act": nn.SiLU, "gate": nn.Sigmoid}
        self.features = nn.Sequential(
            normalized(3, 8, 3, act=nn.SiLU(), stride=2),
            InvertedResidual(8, 8, 8, 3, 1, **inverted, drop=drop),
            InvertedResidual(8, 24, 12, 5, 2, **inverted, drop=drop),
            InvertedResidual(12, 36, 12, 3, 1, **inverted, drop=drop),
            normalized(12, 32, 1, act=nn.SiLU()),
        )
        self.classifier = nn.Sequential(nn.Dropout(drop), nn.Linear(32, classes))

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of each picture."""
        return self.classifier(self.features(x).mean((2, 3)))


class ChannelNorm(nn.LayerNorm):
    """Layer normalization of the channels of pictures."""

    def forward(self, x: Tensor) -> Tensor:
        """Return normalized pictures."""
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNeXtBlock(nn.Module):
    """A depthwise convolution, and a perceptron of the channels, scaled."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.filter = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.wide, self.narrow = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)
        self.layer_scale = nn.Parameter(torch.full((channels, 1, 1), 1e-1))

    def forward(self, x: Tensor) -> Tensor:
        """Return features beside a shortcut."""
        y = self.norm(self.filter(x).permute(0, 2, 3, 1))
        y = self.narrow(functional.gelu(self.wide(y))).permute(0, 3, 1, 2)
        return x + self.layer_scale * y


class ConvNeXt(nn.Module):
    """Two stages of one block each."""

    def __init__(self, classes: int = 5, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 4, 4), ChannelNorm(width, eps=1e-6))
        self.stages = nn.Sequential(
            ConvNeXtBlock(width),
            nn.Sequential(ChannelNorm(width, eps=1e-6), nn.Conv2d(width, 2 * width, 2, 2)),
            ConvNeXtBlock(2 * width),
        )
        self.norm, self.head = nn.LayerNorm(2 * width, eps=1e-6), nn.Linear(2 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of each picture."""
        return self.head(self.norm(self.stages(self.stem(x)).mean((-2, -1))))
