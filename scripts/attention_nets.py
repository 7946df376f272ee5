"""Networks with attention for the training models."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Attention(nn.Module):
    """Multi-head self-attention with an additive mask (Vaswani et al. 2017)."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.output = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def _split(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1], self.heads, self.size).transpose(1, 2)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Compute the output."""
        scores = self._split(self.query(x)) @ self._split(self.key(x)).transpose(-1, -2) / self.size**0.5
        weights = self.dropout(torch.softmax(scores + mask, -1))
        y = (weights @ self._split(self.value(x))).transpose(1, 2).reshape(x.shape)
        out: Tensor = self.output(y)
        return out


class EncoderLayer(nn.Module):
    """Attention and a feed-forward layer, each with a shortcut and normalised after it, as in BERT."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention, self.norm1 = Attention(width, heads, dropout), nn.LayerNorm(width)
        self.expand, self.contract = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm2, self.dropout = nn.LayerNorm(width), nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Compute the output."""
        x = self.norm1(x + self.dropout(self.attention(x, mask)))
        y: Tensor = self.norm2(x + self.dropout(self.contract(functional.gelu(self.expand(x)))))
        return y


class Bert(nn.Module):
    """BERT with a classification head on its first token (Devlin et al. 2018)."""

    def __init__(
        self, depth: int, width: int, heads: int, *, vocabulary: int, dropout: float, classes: int = 2
    ) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(512, width)
        self.norm, self.dropout = nn.LayerNorm(width), nn.Dropout(dropout)
        self.layers = nn.ModuleList(EncoderLayer(width, heads, dropout) for _ in range(depth))
        self.pool, self.head = nn.Linear(width, width), nn.Linear(width, classes)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Compute the output."""
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        mask = (1.0 - attention_mask[:, None, None, :].to(torch.float32)) * -10000.0
        x = self.dropout(self.norm(self.token(input_ids) + self.position(places)))
        for layer in self.layers:
            x = layer(x, mask)
        out: Tensor = self.head(self.dropout(torch.tanh(self.pool(x[:, 0]))))
        return out


class PreNormLayer(nn.Module):
    """Attention and a feed-forward layer, each with a shortcut and normalised before it, as in GPT-2."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads, 0.0)
        self.norm2 = nn.LayerNorm(width)
        self.expand, self.contract = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Compute the output."""
        x = x + self.attention(self.norm1(x), mask)
        y: Tensor = x + self.contract(functional.gelu(self.expand(self.norm2(x))))
        return y


class Gpt(nn.Module):
    """A causal language model (Radford et al. 2019); a score for every word of the vocabulary at each token."""

    def __init__(self, depth: int, width: int, heads: int, *, vocabulary: int, length: int) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(PreNormLayer(width, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, input_ids: Tensor) -> Tensor:
        """Compute the output."""
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        mask = (places[None, :] > places[:, None]).to(torch.float32) * -10000.0
        x = self.token(input_ids) + self.position(places)
        for layer in self.layers:
            x = layer(x, mask)
        out: Tensor = self.head(self.norm(x))
        return out.flatten(0, 1)


class Vit(nn.Module):
    """A vision transformer on patches of an image, with a class token (Dosovitskiy et al. 2020)."""

    def __init__(self, depth: int, width: int, heads: int, *, size: int, patch: int, classes: int = 10) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.position = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, width) * 0.02)
        self.layers = nn.ModuleList(PreNormLayer(width, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the output."""
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), x), 1) + self.position
        mask = torch.zeros(1, device=x.device)
        for layer in self.layers:
            x = layer(x, mask)
        out: Tensor = self.head(self.norm(x)[:, 0])
        return out
