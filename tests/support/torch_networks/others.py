"""Networks of other structures: what strangers may bring."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class VisionTransformer(nn.Module):
    """Patches, a class token, and torch's fused attention."""

    def __init__(self, classes: int = 5, width: int = 16, patches: int = 16) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.places = nn.Parameter(0.1 * torch.randn(1, patches + 1, width))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of each picture."""
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.places
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norms[0](x)).reshape(batch, length, 3, 4, width // 4).permute(2, 0, 3, 1, 4).unbind(0)
        y = functional.scaled_dot_product_attention(q, k, v)
        x = x + self.project(y.transpose(1, 2).reshape(batch, length, width))
        x = x + self.mlp(self.norms[1](x))
        return self.head(self.norms[2](x)[:, 0])


class CrossAttention(nn.Module):
    """nn.MultiheadAttention of a sequence to itself, with a causal mask, and to another one."""

    def __init__(self, classes: int = 5, width: int = 16) -> None:
        super().__init__()
        self.own = nn.MultiheadAttention(width, 4, batch_first=True)
        self.cross = nn.MultiheadAttention(width, 2, kdim=6, vdim=6, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        """Return the scores of each sequence."""
        hidden = torch.triu(torch.ones(x.shape[1], x.shape[1], dtype=torch.bool), diagonal=1)
        x = x + self.own(x, x, x, attn_mask=hidden, need_weights=False)[0]
        y, weights = self.cross(x, memory, memory)
        return self.head((x + y).mean(1)) + weights.sum((1, 2))[:, None] * 0.1


class TransformerClassifier(nn.Module):
    """torch's own encoder, with its mask of padding."""

    def __init__(self, classes: int = 5, width: int = 16, *, norm_first: bool = False) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 4, 32, dropout=0.0, batch_first=True, norm_first=norm_first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        """Return the scores of each sequence."""
        return self.head(self.encoder(x, src_key_padding_mask=padding).mean(1))


class Translator(nn.Module):
    """torch's own transformer, encoder and decoder."""

    def __init__(self, classes: int = 7, width: int = 16) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(11, width), nn.Embedding(classes, width)
        self.transformer = nn.Transformer(width, 2, 1, 1, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the scores of each next token."""
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        return self.head(self.transformer(self.source(source), self.target(target), tgt_mask=mask))


class DenseNet(nn.Module):
    """Each layer reads all before it."""

    def __init__(self, classes: int = 5, growth: int = 4) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(8 + i * growth), nn.ReLU(), nn.Conv2d(8 + i * growth, growth, 3, padding=1, bias=False)
            )
            for i in range(3)
        )
        self.norm, self.head = nn.BatchNorm2d(8 + 3 * growth), nn.Linear(8 + 3 * growth, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of each picture."""
        found = [self.stem(x)]
        for layer in self.layers:
            found.append(layer(torch.cat(found, 1)))
        x = functional.avg_pool2d(functional.relu(self.norm(torch.cat(found, 1))), 2)
        return self.head(functional.adaptive_avg_pool2d(x, (1, 1)).flatten(1))


class ShuffleNet(nn.Module):
    """Halves of the channels, shuffled."""

    def __init__(self, classes: int = 5, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, 2, 1)
        half = width // 2
        self.branch = nn.Sequential(
            nn.Conv2d(half, half, 1, bias=False), nn.BatchNorm2d(half), nn.ReLU(inplace=True),
            nn.Conv2d(half, half, 3, padding=1, groups=half, bias=False), nn.BatchNorm2d(half),
        )  # fmt: skip
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of each picture."""
        x = self.stem(x)
        one, two = x.chunk(2, dim=1)
        x = torch.cat((one, self.branch(two)), dim=1)
        batch, channels, height, width = x.shape
        x = x.view(batch, 2, channels // 2, height, width).transpose(1, 2).contiguous().view(batch, -1, height, width)
        return self.head(functional.relu6(x).amax((2, 3)))


class Tagger(nn.Module):
    """A score for each word, by an LSTM of embeddings."""

    def __init__(self, tags: int = 4, vocabulary: int = 20, width: int = 6, hidden: int = 5) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, hidden, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * hidden, tags)

    def forward(self, words: Tensor) -> Tensor:
        """Return the scores of each word."""
        return functional.log_softmax(self.head(self.lstm(self.embedding(words))[0]), dim=-1)


class SuperResolution(nn.Module):
    """Larger pictures by shuffling channels into pixels, beside a resized one."""

    def __init__(self, factor: int = 2) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 8, 5, padding=2), nn.Conv2d(8, factor**2, 3, padding=1)
        self.shuffle, self.factor = nn.PixelShuffle(factor), factor

    def forward(self, x: Tensor) -> Tensor:
        """Return larger pictures."""
        y = self.shuffle(self.second(torch.tanh(self.first(x))))
        return y + functional.interpolate(x * self.first.bias.mean(), scale_factor=self.factor, mode="bilinear")


class Generator(nn.Module):
    """Pictures of noise, by transposed convolutions."""

    def __init__(self, noise: int = 6, width: int = 8) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.ConvTranspose2d(noise, 2 * width, 4, 1, 0, bias=False), nn.BatchNorm2d(2 * width), nn.ReLU(True),
            nn.ConvTranspose2d(2 * width, width, 4, 2, 1, bias=False), nn.BatchNorm2d(width), nn.LeakyReLU(0.2, True),
            nn.ConvTranspose2d(width, 3, 3, 2, 1, output_padding=1), nn.Tanh(),
        )  # fmt: skip

    def forward(self, z: Tensor) -> Tensor:
        """Return pictures."""
        return self.layers(z)


class Detector(nn.Module):
    """Boxes and classes of each cell, and their loss, which the module computes itself."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.SiLU(), nn.Conv2d(8, 8, 3, 2, 1), nn.SiLU())
        self.boxes, self.classes, self.unused = nn.Conv2d(8, 4, 1), nn.Conv2d(8, classes, 1), nn.Linear(2, 2)

    def forward(self, x: Tensor, boxes: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return the loss, the boxes and the scores."""
        y = self.backbone(x)
        found, scores = self.boxes(y).flatten(2).transpose(1, 2), self.classes(y).flatten(2).transpose(1, 2)
        present = (labels > 0).float()
        box = (functional.smooth_l1_loss(found.sigmoid(), boxes, reduction="none").sum(-1) * present).sum()
        score = functional.cross_entropy(scores.reshape(-1, scores.shape[-1]), labels.reshape(-1))
        focal = functional.binary_cross_entropy_with_logits(scores[..., 0], present, reduction="mean")
        return {"loss": box / present.sum().clamp(min=1.0) + score + 0.5 * focal, "boxes": found, "scores": scores}


class WaveNet(nn.Module):
    """Dilated causal convolutions with gates."""

    def __init__(self, classes: int = 6, width: int = 8) -> None:
        super().__init__()
        self.embedding = nn.Embedding(classes, width)
        self.dilated = nn.ModuleList(nn.Conv1d(width, 2 * width, 2, dilation=2**i) for i in range(3))
        self.skips = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(3))
        self.head = nn.Conv1d(width, classes, 1)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the scores of each next sample."""
        x = self.embedding(tokens).transpose(1, 2)
        total = torch.zeros_like(x)
        for i, (dilated, skip) in enumerate(zip(self.dilated, self.skips, strict=True)):
            left, right = dilated(functional.pad(x, (2**i, 0))).chunk(2, dim=1)
            y = skip(left.tanh() * right.sigmoid())
            x, total = x + y, total + y
        return self.head(functional.elu(total)).transpose(1, 2)


class Mixture(nn.Module):
    """A few experts of many: the best by a gate, with where, topk, scatter and gather."""

    def __init__(self, classes: int = 5, width: int = 6, experts: int = 4) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.weight = nn.Parameter(torch.randn(experts, width, width) / width**0.5)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of each row."""
        best, chosen = self.gate(x).topk(2, dim=-1)
        weights = torch.zeros(x.shape[0], self.gate.out_features, dtype=x.dtype).scatter(1, chosen, best.softmax(-1))
        every = torch.einsum("bi,eio->beo", x, self.weight)
        y = torch.where(every > 0, every, 0.1 * every)
        first = y.gather(1, chosen[:, :1, None].expand(-1, -1, y.shape[-1]))[:, 0]
        return self.head((weights[..., None] * y).sum(1) + functional.normalize(first, dim=-1))


class Volumes(nn.Module):
    """Three dimensions: convolution, pooling, transposed convolution, nearest resize."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv3d(1, 4, 3, padding=1), nn.BatchNorm3d(4), nn.ReLU(), nn.MaxPool3d(2))
        self.up = nn.ConvTranspose3d(4, 1, 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Return volumes of the same size."""
        y = self.down(x)
        return self.up(y) + functional.interpolate(y.mean(1, keepdim=True), scale_factor=2.0)


class Normed(nn.Module):
    """Weights that are computed of others: weight and spectral normalization; a frozen first layer."""

    def __init__(self, classes: int = 5) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8).requires_grad_(False)
        self.norm = nn.BatchNorm1d(8)
        self.second = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))
        self.third = nn.Bilinear(8, 8, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of each row."""
        x = self.norm(self.first(x))
        y = functional.glu(self.second(x).repeat(1, 2))
        return self.third(x, y)


class Detached(nn.Module):
    """Two views, of which the second teaches the first and is not taught."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.encoder, self.predictor = nn.Linear(width, 5), nn.Linear(5, 5)

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        """Return the loss."""
        one, two = self.predictor(self.encoder(x)), self.encoder(other).detach()
        with torch.no_grad():
            scale = self.predictor(two).norm()
        return -functional.cosine_similarity(one, two, dim=-1).mean() / scale
