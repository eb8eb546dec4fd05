"""Trainings with accelerate over a mount."""

from pathlib import Path

import pytest
import torch
import torch._dynamo  # an optimizer would import it in each rank, which takes 1.3 s of CPU time
from accelerate import Accelerator, DataLoaderConfiguration
from torch.utils.data import DataLoader

from dieselfs.errors import UsageError
from dieselfs.integrations.torch_loader import ChunkShuffleLoader
from dieselfs.integrations.torch_sampler import ChunkShuffleSampler
from tests.dieselfs.integrations.framework_ranks import Numbers, Record


def train(mount: Path, folder: Path, record: Record, workers: int = 0, every: int = 5) -> None:
    images = Numbers(mount)
    accelerator = Accelerator(cpu=True)
    assert accelerator.num_processes == 2
    sampler = ChunkShuffleSampler(images, seed=1, group_size=3)
    loader = ChunkShuffleLoader(images, 16, sampler=sampler, num_workers=workers)
    linear = torch.nn.Linear(1, 1)
    model, optimizer, prepared = accelerator.prepare(
        linear, torch.optim.SGD(linear.parameters(), 0.01), loader
    )
    assert prepared is loader
    accelerator.register_for_checkpointing(loader)
    saved = sorted(folder.glob("step*"))
    step = 0
    if saved:
        accelerator.load_state(saved[-1])
        step = int(saved[-1].name[4:])
    for epoch in range(sampler.epoch, 2):
        loader.set_epoch(epoch)
        for batch in loader:
            record.trained(step, epoch, batch.tolist())
            loss = model(batch.float()[:, None] / 500).mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step % every == 0:
                accelerator.save_state(folder / f"step{step:03}")
    sampler.close()


def train_with_a_plain_loader(mount: Path, folder: Path, record: Record, dispatch: bool) -> None:
    images = Numbers(mount)
    accelerator = Accelerator(
        cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=dispatch)
    )
    loader = accelerator.prepare(DataLoader(images, 16, sampler=ChunkShuffleSampler(images)))
    if not dispatch or accelerator.is_main_process:  # the others wait for what this one reads
        with pytest.raises(UsageError, match="most samples would be lost") as refused:
            next(iter(loader))
        assert "ChunkShuffleLoader" in (refused.value.hint or "")
    accelerator.wait_for_everyone()  # a rank that has ended breaks the connections of the others
