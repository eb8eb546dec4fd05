"""A small convolutional network with batch normalisation, as ResNets have it: batches that hold few
classes harm it most.

Batch normalisation learns the mean and variance of what it sees from the batches themselves, so an
order that mixes classes badly hurts twice: the gradient of a batch leads towards its classes, and
the statistics used for testing are those of the last batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from benchmarks.made_images import SIDE, Images

BATCH: Final = 64
_RATE: Final = 0.05
_MOMENTUM: Final = 0.9
_DECAY: Final = 5e-4


@dataclass(frozen=True, slots=True)
class Tensors:
    """Images as the network takes them."""

    pixels: torch.Tensor
    """(images, 1, SIDE, SIDE), about -1 to 1."""
    labels: torch.Tensor


def tensors(images: Images) -> Tensors:
    pixels = torch.from_numpy(images.pixels.astype(np.float32) / 64 - 2).unsqueeze(1)
    return Tensors(
        pixels.contiguous(memory_format=torch.channels_last), torch.from_numpy(images.labels)
    )


class Training:
    """A network, learning epoch by epoch. Equal seeds begin with equal weights."""

    def __init__(self, classes: int, seed: int, epochs: int) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(seed)
        self._network = _network(classes).to(memory_format=torch.channels_last)
        self._optimizer = torch.optim.SGD(
            self._network.parameters(), _RATE, _MOMENTUM, weight_decay=_DECAY, nesterov=True
        )
        self._schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self._optimizer, epochs)

    def learn_epoch(self, samples: Tensors, order: npt.NDArray[np.integer]) -> None:
        """One pass in the order given; the last batch is left out unless it is full."""
        self._network.train()
        for start in range(0, len(order) - BATCH + 1, BATCH):
            batch = torch.from_numpy(order[start : start + BATCH].astype(np.int64))
            loss = nn.functional.cross_entropy(
                self._network(samples.pixels[batch]), samples.labels[batch]
            )
            self._optimizer.zero_grad()
            loss.backward()
            self._optimizer.step()
        self._schedule.step()

    def accuracy(self, samples: Tensors) -> float:
        """Part of the samples whose class is answered: 0 to 1."""
        self._network.eval()
        with torch.inference_mode():
            answers = self._network(samples.pixels).argmax(1)
        return float((answers == samples.labels).float().mean())


def _network(classes: int) -> nn.Sequential:
    """About 20 thousand weights."""

    def block(inputs: int, outputs: int) -> list[nn.Module]:
        convolution = nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False)
        return [convolution, nn.BatchNorm2d(outputs), nn.ReLU()]

    return nn.Sequential(
        *block(1, 16),
        *block(16, 32),
        nn.Flatten(),
        nn.Linear(32 * (SIDE // 4) ** 2, classes),
    )
