#!/usr/bin/env python3
"""Trains a small network on a mounted dataset, with nothing but torchvision and PyTorch.

    train_imagefolder.py MOUNTPOINT --epochs 2 --workers 2

The mount is an ordinary directory tree of class folders, so `ImageFolder` and `DataLoader` are used
as they are. The only thing added is the order: a sampler of a few lines that takes each epoch's
chunk-wise shuffled list from the mount's control directory, so that the files of a chunk are read
while the chunk is at hand.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Sampler

try:
    from torchvision import datasets, transforms
except RuntimeError:
    # A torchvision built for CUDA does not load beside a torch without it: it looks up operators
    # that its missing library would have declared. No image here needs them; declaring their
    # signatures is enough.
    operators = torch.library.Library("torchvision", "DEF")
    operators.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    operators.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    from torchvision import datasets, transforms

IMAGE_PIXELS = 32


class ChunkWiseOrder(Sampler[int]):
    """The indices of an `ImageFolder`'s samples in the order that the mount gives for an epoch."""

    def __init__(self, images: datasets.ImageFolder, seed: int, group_chunks: int) -> None:
        self.root = Path(images.root)
        self.index_of = {
            os.path.relpath(path, self.root): index
            for index, (path, _) in enumerate(images.samples)
        }
        self.seed = seed
        self.group_chunks = group_chunks
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        name = f"seed={self.seed},epoch={self.epoch},group={self.group_chunks},rank=0,world=1"
        listed = (self.root / ".dieselfs" / "shuffle" / name).read_bytes().splitlines()
        for path in map(os.fsdecode, listed):
            if path in self.index_of:  # files that are no images are listed as well
                yield self.index_of[path]

    def __len__(self) -> int:
        return len(self.index_of)


def small_network(classes: int) -> nn.Module:
    """Two convolutions and a linear layer: enough to learn something within seconds on a CPU."""
    return nn.Sequential(
        nn.Conv2d(3, 16, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * (IMAGE_PIXELS // 4) ** 2, classes),
    )


def train(arguments: argparse.Namespace) -> None:
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(1)  # the network is tiny; the cores are for the workers that decode
    images = datasets.ImageFolder(
        arguments.mountpoint,
        transforms.Compose(
            [transforms.Resize((IMAGE_PIXELS, IMAGE_PIXELS)), transforms.ToTensor()]
        ),
    )
    print(f"{len(images):,} images in {len(images.classes)} classes: {', '.join(images.classes)}")

    order = ChunkWiseOrder(images, arguments.seed, arguments.group)
    loader = DataLoader(
        images, sampler=order, batch_size=arguments.batch, num_workers=arguments.workers
    )
    network = small_network(len(images.classes))
    optimizer = torch.optim.Adam(network.parameters(), lr=2e-3)

    for epoch in range(arguments.epochs):
        order.epoch = epoch
        seen = right = 0
        started = time.perf_counter()
        for batch, labels in loader:
            scores = network(batch)
            loss = nn.functional.cross_entropy(scores, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            # Scored before the step that learns from it, so the first epoch scores unseen images.
            right += int((scores.argmax(dim=1) == labels).sum())
            seen += len(labels)
        seconds = time.perf_counter() - started
        assert seen == len(images), f"the epoch's list has {seen} of {len(images)} images"
        print(
            f"epoch {epoch + 1}: {seen:,} images, accuracy {right / seen:.1%}, "
            f"{seen / seconds:,.0f} images/s"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small network on a mounted dataset.")
    parser.add_argument("mountpoint", help="a mounted dataset: one folder of images a class")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2, help="DataLoader processes")
    parser.add_argument("--batch", type=int, default=64, help="images a step")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--group", type=int, default=100, help="chunks that are shuffled together")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
