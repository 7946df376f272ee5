"""Networks of sequences: a decoder, a GRU, sound, an encoder as DistilBERT's."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class RMSNorm(nn.Module):
    """As transformers writes it for Llama and Qwen2."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Return rows of mean square 1, scaled."""
        x = x.to(torch.float32)
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn pairs of features by an angle that grows with the place."""
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin


class GroupedAttention(nn.Module):
    """Causal attention with fewer heads of keys than of queries, and rotary embeddings."""

    def __init__(self, width: int, heads: int, groups: int, length: int) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.q_proj = nn.Linear(width, width)
        self.k_proj, self.v_proj = (nn.Linear(width, groups * self.size) for _ in range(2))
        self.o_proj = nn.Linear(width, width, bias=False)
        frequencies = 1e4 ** (-torch.arange(0, self.size, 2) / self.size)
        angles = torch.arange(length)[:, None] * frequencies.repeat(2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return what each place gathers from those before it."""
        batch, length, width = x.shape
        q = self.q_proj(x).view(batch, length, self.heads, self.size).transpose(1, 2)
        k, v = (
            project(x).view(batch, length, self.groups, self.size).transpose(1, 2)
            for project in (self.k_proj, self.v_proj)
        )
        q, k = rotated(q, self.cos, self.sin), rotated(k, self.cos, self.sin)
        q = q.view(batch, self.groups, self.heads // self.groups, length, self.size)
        scores = torch.einsum("bghid,bgjd->bghij", q, k) / self.size**0.5
        hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        return self.o_proj(torch.einsum("bghij,bgjd->bighd", weights, v).reshape(batch, length, width))


class DecoderLayer(nn.Module):
    """Attention and a gated perceptron, each behind a normalization."""

    def __init__(self, width: int, heads: int, groups: int, length: int) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(width), RMSNorm(width)
        self.self_attn = GroupedAttention(width, heads, groups, length)
        self.gate_proj, self.up_proj = (nn.Linear(width, 2 * width, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the places' features beside shortcuts."""
        x = x + self.self_attn(self.input_layernorm(x))
        y = self.post_attention_layernorm(x)
        return x + self.down_proj(functional.silu(self.gate_proj(y)) * self.up_proj(y))


class Decoder(nn.Module):
    """A language model as Qwen2, small; its scores are made with the weight of the embedding where it is tied."""

    def __init__(self, vocabulary: int = 30, width: int = 16, length: int = 8, layers: int = 2, *, tied: bool = False):
        super().__init__()
        self.embed_tokens = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(DecoderLayer(width, 4, 2, length) for _ in range(layers))
        self.norm = RMSNorm(width)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.lm_head.weight = self.embed_tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the scores of the next token at each place."""
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.norm(x))


class Recurrent(nn.Module):
    """A recurrent cell in both directions, and scores of the last state."""

    def __init__(self, cell: str = "GRU", width: int = 6, hidden: int = 8, classes: int = 5) -> None:
        super().__init__()
        self.cell = getattr(nn, cell)(width, hidden, num_layers=2, bidirectional=True, batch_first=True)
        self.scores = nn.Linear(2 * hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of each sequence."""
        return self.scores(self.cell(x)[0][:, -1])


class Sound(nn.Module):
    """Convolutions along time with instance normalizations, which know no batch."""

    def __init__(self, classes: int = 5, width: int = 8) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(1, width, 9, stride=4, padding=4),
            nn.InstanceNorm1d(width, affine=True),
            nn.LeakyReLU(0.1),
            nn.Conv1d(width, 2 * width, 5, stride=2, padding=2, groups=2),
            nn.InstanceNorm1d(2 * width),
            nn.PReLU(2 * width),
            nn.AvgPool1d(2),
        )
        self.scores = nn.Linear(4 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of each piece of sound."""
        x = self.layers(x)
        return self.scores(torch.cat([x.mean(-1), x.std(-1)], dim=-1))


class EncoderLayer(nn.Module):
    """DistilBERT's layer: attention, a perceptron, and normalizations behind both."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.q_lin, self.k_lin, self.v_lin, self.out_lin = (nn.Linear(width, width) for _ in range(4))
        self.sa_layer_norm, self.output_layer_norm = (nn.LayerNorm(width, eps=1e-12) for _ in range(2))
        self.lin1, self.lin2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = dropout

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return features of each place, of which masked ones are not looked at."""
        q, k, v = (
            each(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in (self.q_lin, self.k_lin, self.v_lin)
        )
        p = self.dropout if self.training else 0.0
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :].bool(), dropout_p=p)
        x = self.sa_layer_norm(self.out_lin(y.transpose(1, 2).flatten(2)) + x)
        y = functional.dropout(self.lin2(functional.gelu(self.lin1(x))), self.dropout, self.training)
        return self.output_layer_norm(y + x)


class Encoder(nn.Module):
    """A classifier of texts as DistilBERT, small."""

    def __init__(self, classes: int = 3, vocabulary: int = 30, width: int = 16, length: int = 8, dropout: float = 0.0):
        super().__init__()
        self.word_embeddings = nn.Embedding(vocabulary, width, padding_idx=0)
        self.position_embeddings = nn.Embedding(length, width)
        self.register_buffer("position_ids", torch.arange(length)[None], persistent=False)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.layers = nn.ModuleList(EncoderLayer(width, 4, dropout) for _ in range(2))
        self.pre_classifier, self.classifier = nn.Linear(width, width), nn.Linear(width, classes)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        """Return the scores of each text."""
        places = self.position_embeddings(self.position_ids[:, : input_ids.shape[1]])
        x = self.norm(self.word_embeddings(input_ids) + places)
        for layer in self.layers:
            x = layer(x, attention_mask)
        return {"logits": self.classifier(torch.relu(self.pre_classifier(x[:, 0])))}
