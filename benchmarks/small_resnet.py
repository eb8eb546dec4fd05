"""ResNet-18 for small images, as the paper trains it on CIFAR-10, but narrower: a CPU trains it."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import nn

WIDTH: Final = 8
"""Channels of the first stage; ResNet-18 has 64."""
_RATE: Final = 0.05


class Residual(nn.Module):
    """Two convolutions, and what came in added to what comes out."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.path = nn.Sequential(
            *_convolution(inputs, outputs, stride), nn.ReLU(), *_convolution(outputs, outputs, 1)
        )
        is_same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if is_same else nn.Conv2d(inputs, outputs, 1, stride)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return nn.functional.relu(self.path(images) + self.shortcut(images))


def small_resnet(classes: int, width: int = WIDTH) -> nn.Sequential:
    """Four stages of two residual blocks, on grey images."""
    layers: list[nn.Module] = [*_convolution(1, width, 1), nn.ReLU()]
    inputs = width
    for stage in range(4):
        outputs = width << stage
        layers += [Residual(inputs, outputs, 2 if stage else 1), Residual(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


class Trainer:
    """A network that learns batch by batch. Equal seeds begin with equal weights."""

    def __init__(self, classes: int, seed: int) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(seed)
        self._network = small_resnet(classes)
        weights = self._network.parameters()
        self._optimizer = torch.optim.SGD(weights, _RATE, momentum=0.9, weight_decay=5e-4)

    def learn(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        self._network.train()
        loss = nn.functional.cross_entropy(self._network(images), labels)
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()

    def accuracy(self, images: torch.Tensor, labels: torch.Tensor) -> float:
        """Part of the samples whose class is answered: 0 to 1."""
        self._network.eval()
        with torch.inference_mode():
            answers = torch.cat([self._network(part).argmax(1) for part in images.split(256)])
        return float((answers == labels).float().mean())


def _convolution(inputs: int, outputs: int, stride: int) -> list[Any]:
    return [
        nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
    ]
