"""A small GPT over bytes, and the plan of its learning rate."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

VOCABULARY = 256


@dataclass(frozen=True)
class Shape:
    """The size of the model."""

    length: int = 128
    layers: int = 4
    heads: int = 4
    width: int = 128
    dropout: float = 0.1


class Block(nn.Module):
    """Attention to what came before, then a layer for each place."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self._heads = shape.heads
        self._dropout = shape.dropout
        self.before = nn.LayerNorm(shape.width)
        self.attention = nn.Linear(shape.width, 3 * shape.width)
        self.projection = nn.Linear(shape.width, shape.width)
        self.between = nn.LayerNorm(shape.width)
        self.wide = nn.Sequential(
            nn.Linear(shape.width, 4 * shape.width), nn.GELU(), nn.Linear(4 * shape.width, shape.width)
        )
        self.drop = nn.Dropout(shape.dropout)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Of the same form as the inputs: samples, places, width."""
        count, length, width = inputs.shape
        parts = self.attention(self.before(inputs)).view(count, length, 3, self._heads, width // self._heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        dropout = self._dropout if self.training else 0.0
        seen = functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        inputs = inputs + self.drop(self.projection(seen.transpose(1, 2).reshape(count, length, width)))
        return inputs + self.drop(self.wide(self.between(inputs)))


class Gpt(nn.Module):
    """From bytes to what the next byte may be."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.bytes = nn.Embedding(VOCABULARY, shape.width)
        self.places = nn.Embedding(shape.length, shape.width)
        self.blocks = nn.Sequential(*(Block(shape) for _layer in range(shape.layers)))
        self.last = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, VOCABULARY, bias=False)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The sum of the losses of all places, in nats."""
        places = torch.arange(inputs.shape[1], device=inputs.device)
        hidden = self.blocks(self.bytes(inputs) + self.places(places))
        logits = self.head(self.last(hidden)).float()
        return functional.cross_entropy(logits.view(-1, VOCABULARY), targets.reshape(-1), reduction="sum")


def rate(step: int, steps: int, warm_up: int) -> float:
    """The part of the highest learning rate that a step has: up in a line, then down in half a cosine to a tenth."""
    if step < warm_up:
        return (step + 1) / warm_up
    through = (step - warm_up) / max(1, steps - warm_up)
    return 0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, through)))
