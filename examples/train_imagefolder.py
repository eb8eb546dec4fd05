#!/usr/bin/env python3
"""Trains a small network on a mounted dataset, with torchvision's own ImageFolder.

    train_imagefolder.py MOUNTPOINT --epochs 2 --workers 2 --checkpoint run.pt

The mount is an ordinary directory tree of class folders, so `ImageFolder` is used as it is. What is
added is the order: `ChunkShuffleSampler` shuffles chunk-wise, so that the files of a chunk are read
while the chunk is at hand, and tells the mount what comes next. `ChunkShuffleLoader` is a
DataLoader that counts what was trained; with its state in the checkpoint, a run that was
interrupted goes on with the very next image. docs/pytorch.md says more.
"""

from __future__ import annotations

import argparse
import os
import time

import torch
from torch import nn
from torchvision import datasets, transforms

from dieselfs.integrations.torch_loader import ChunkShuffleLoader
from dieselfs.integrations.torch_sampler import ChunkShuffleSampler

IMAGE_PIXELS = 32


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

    order = ChunkShuffleSampler(images, seed=arguments.seed, group_size=arguments.group)
    loader = ChunkShuffleLoader(
        images, arguments.batch, sampler=order, num_workers=arguments.workers
    )
    network = small_network(len(images.classes))
    optimizer = torch.optim.Adam(network.parameters(), lr=2e-3)

    def save() -> None:
        if arguments.checkpoint:
            state = {"network": network, "optimizer": optimizer, "order": loader}
            torch.save(
                {name: part.state_dict() for name, part in state.items()},
                f"{arguments.checkpoint}.new",
            )
            os.replace(f"{arguments.checkpoint}.new", arguments.checkpoint)

    if arguments.checkpoint and os.path.exists(arguments.checkpoint):
        checkpoint = torch.load(arguments.checkpoint)
        network.load_state_dict(checkpoint["network"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        loader.load_state_dict(checkpoint["order"])
        print(f"going on in epoch {order.epoch + 1}: {order.samples_left:,} images are left of it")

    for epoch in range(order.epoch, arguments.epochs):
        loader.set_epoch(epoch)
        left = order.samples_left  # all images, unless the epoch was begun by an earlier run
        if not left:
            continue  # that run had just ended it
        seen = right = 0
        started = time.perf_counter()
        for step, (batch, labels) in enumerate(loader, 1):
            scores = network(batch)
            loss = nn.functional.cross_entropy(scores, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            # Scored before the step that learns from it, so the first epoch scores unseen images.
            right += int((scores.argmax(dim=1) == labels).sum())
            seen += len(labels)
            if step % arguments.save_every == 0:
                save()
        save()
        seconds = time.perf_counter() - started
        assert seen == left, f"the epoch gave {seen} of {left} images"
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
    parser.add_argument("--checkpoint", help="a file to go on from, if it exists, and to save to")
    parser.add_argument("--save-every", type=int, default=100, help="steps between two checkpoints")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
