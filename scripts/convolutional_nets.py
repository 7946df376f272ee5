"""Convolutional networks for the training models."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut (He et al. 2015)."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.shortcut = _shortcut(channels, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the output."""
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions beside a shortcut (He et al. 2015)."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(4 * width)
        self.shortcut = _shortcut(channels, 4 * width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the output."""
        y = torch.relu(self.norm1(self.conv1(x)))
        y = torch.relu(self.norm2(self.conv2(y)))
        return torch.relu(self.norm3(self.conv3(y)) + self.shortcut(x))


def _shortcut(channels: int, width: int, stride: int) -> nn.Module:
    if stride == 1 and channels == width:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(channels, width, 1, stride, bias=False), nn.BatchNorm2d(width))


def resnet18(classes: int = 10) -> nn.Module:
    """Return ResNet-18 in its CIFAR form: a 3x3 stem and no pooling before the blocks."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    channels = 64
    for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [BasicBlock(channels, width, stride), BasicBlock(width, width, 1)]
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


def resnet50(classes: int = 1000) -> nn.Module:
    """Return ResNet-50 for 224x224 images."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    layers.append(nn.MaxPool2d(3, 2, 1))
    channels = 64
    for width, stride, depth in ((64, 1, 3), (128, 2, 4), (256, 2, 6), (512, 2, 3)):
        for index in range(depth):
            layers.append(Bottleneck(channels, width, stride if index == 0 else 1))
            channels = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


def vgg16(classes: int, size: int) -> nn.Module:
    """Return VGG-16 (Simonyan et al. 2014): one linear layer as head at 32 pixels, the original three above."""
    layers: list[nn.Module] = []
    channels = 3
    for width, depth in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(depth):
            layers += [nn.Conv2d(channels, width, 3, 1, 1), nn.ReLU()]
            channels = width
        layers.append(nn.MaxPool2d(2))
    layers.append(nn.Flatten())
    if size <= 32:
        return nn.Sequential(*layers, nn.Linear(512, classes))
    layers += [nn.Linear(512 * (size // 32) ** 2, 4096), nn.ReLU(), nn.Dropout(0.5)]
    layers += [nn.Linear(4096, 4096), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4096, classes)]
    return nn.Sequential(*layers)


class InvertedResidual(nn.Module):
    """Expansion, depthwise convolution and projection beside an identity (Sandler et al. 2018)."""

    def __init__(self, channels: int, width: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = channels * expansion
        self.residual = stride == 1 and channels == width
        expanded = (nn.Conv2d(channels, hidden, 1, bias=False), nn.BatchNorm2d(hidden), nn.ReLU6())
        self.layers = nn.Sequential(
            *(expanded if expansion > 1 else ()),
            nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False),
            nn.BatchNorm2d(hidden),
            nn.ReLU6(),
            nn.Conv2d(hidden, width, 1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Compute the output."""
        y: Tensor = self.layers(x)
        return x + y if self.residual else y


def mobilenet(classes: int = 10) -> nn.Module:
    """Return a small MobileNetV2: depthwise convolutions, ReLU6 and inverted residuals."""
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU6()]
    channels = 16
    for width, stride in ((16, 1), (24, 2), (24, 1), (32, 2), (32, 1), (64, 2), (64, 1)):
        layers.append(InvertedResidual(channels, width, stride, expansion=4))
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


def mobilenet_v2(classes: int = 1000) -> nn.Module:
    """Return MobileNetV2 for 224x224 images, 3.5 million parameters."""
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU6()]
    channels = 32
    widths = ((16, 1, 1), (24, 2, 2), (32, 3, 2), (64, 4, 2), (96, 3, 1), (160, 3, 2), (320, 1, 1))
    for width, depth, stride in widths:
        for index in range(depth):
            expansion = 1 if width == 16 else 6
            layers.append(InvertedResidual(channels, width, stride if index == 0 else 1, expansion))
            channels = width
    layers += [nn.Conv2d(channels, 1280, 1, bias=False), nn.BatchNorm2d(1280), nn.ReLU6()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, classes))


class Upscale(nn.Module):
    """A sub-pixel convolution: four channels become a square of four pixels (Shi et al. 2016)."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, 4 * width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the output."""
        x = self.conv(x)
        batch, channels, height, width = x.shape
        x = x.view(batch, channels // 4, 2, 2, height, width).permute(0, 1, 4, 2, 5, 3)
        return x.reshape(batch, channels // 4, 2 * height, 2 * width)


class UNet(nn.Module):
    """An encoder and a decoder joined by skips across the net (Ronneberger et al. 2015); a class for each pixel."""

    def __init__(self, classes: int = 4, widths: tuple[int, ...] = (16, 32, 64)) -> None:
        super().__init__()
        channels = (3, *widths)
        self.down = nn.ModuleList(self._pair(a, b) for a, b in zip(channels, widths, strict=False))
        self.middle = self._pair(widths[-1], 2 * widths[-1])
        self.up = nn.ModuleList(Upscale(2 * width, width) for width in reversed(widths))
        self.merge = nn.ModuleList(self._pair(2 * width, width) for width in reversed(widths))
        self.head = nn.Conv2d(widths[0], classes, 1)

    @staticmethod
    def _pair(channels: int, width: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(channels, width, 3, 1, 1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, 1, 1),
            nn.LeakyReLU(0.1),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Compute the output."""
        skips = []
        for stage in self.down:
            x = stage(x)
            skips.append(x)
            x = functional.max_pool2d(x, 2)
        x = self.middle(x)
        for up, merge, skip in zip(self.up, self.merge, reversed(skips), strict=True):
            x = merge(torch.cat((up(x), skip), 1))
        out: Tensor = self.head(x)
        return out.permute(0, 2, 3, 1).flatten(0, 2)  # a row of scores for each pixel


class DenseLayer(nn.Module):
    """A bottleneck whose output is concatenated to its input (Huang et al. 2016)."""

    def __init__(self, channels: int, growth: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(channels), nn.Conv2d(channels, 4 * growth, 1, bias=False)
        self.norm2, self.conv2 = nn.BatchNorm2d(4 * growth), nn.Conv2d(4 * growth, growth, 3, 1, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the output."""
        y = self.conv1(torch.relu(self.norm1(x)))
        return torch.cat((x, self.conv2(torch.relu(self.norm2(y)))), 1)


def densenet(classes: int = 10, growth: int = 12) -> nn.Module:
    """Return a small DenseNet with average-pooling transitions."""
    channels = 2 * growth
    layers: list[nn.Module] = [nn.Conv2d(3, channels, 3, 1, 1, bias=False)]
    for block, depth in enumerate((3, 3, 3)):
        if block:
            layers += [nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, channels // 2, 1), nn.AvgPool2d(2)]
            channels //= 2
        for _ in range(depth):
            layers.append(DenseLayer(channels, growth))
            channels += growth
    layers += [nn.BatchNorm2d(channels), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(channels, classes))


class InceptionBlock(nn.Module):
    """Four branches side by side, concatenated (Szegedy et al. 2014), with batch normalization."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()

        def conv(inputs: int, kernel: int) -> list[nn.Module]:
            return [nn.Conv2d(inputs, width, kernel, 1, kernel // 2, bias=False), nn.BatchNorm2d(width), nn.ReLU()]

        kinds = [conv(channels, 1), *([*conv(channels, 1), *conv(width, kernel)] for kernel in (3, 5))]
        kinds.append([nn.MaxPool2d(3, 1, 1), *conv(channels, 1)])
        self.branches = nn.ModuleList(nn.Sequential(*layers) for layers in kinds)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the output."""
        return torch.cat([branch(x) for branch in self.branches], 1)


def inception(classes: int = 10, widths: tuple[int, ...] = (8, 12, 16)) -> nn.Module:
    """Return a small GoogLeNet without side losses."""
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    channels = 16
    for width in widths:
        layers += [InceptionBlock(channels, width), nn.MaxPool2d(2)]
        channels = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))
