"""Trainings with Lightning over a mount."""

from pathlib import Path

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from dieselfs.errors import UsageError
from dieselfs.integrations.torch_loader import ChunkShuffleLoader
from dieselfs.integrations.torch_sampler import ChunkShuffleSampler
from tests.dieselfs.integrations.framework_ranks import Numbers, Record


class Model(lightning.LightningModule):
    def __init__(self, record: Record) -> None:
        super().__init__()
        self.weight = torch.nn.Linear(1, 1)
        self.record = record

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        self.record.trained(self.global_step, self.current_epoch, batch.tolist())
        return self.weight(batch.float()[:, None] / 500).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.01)


def train(
    mount: Path,
    folder: Path,
    record: Record,
    workers: int = 0,
    batch_size: int = 16,
    every: int | str = 5,
    group_size: int = 3,
) -> None:
    images = Numbers(mount)
    sampler = ChunkShuffleSampler(images, seed=1, group_size=group_size)
    loader = ChunkShuffleLoader(images, batch_size, sampler=sampler, num_workers=workers)
    when = {"every_n_epochs": 1} if every == "epoch" else {"every_n_train_steps": every}
    checkpoints = ModelCheckpoint(folder, "last", enable_version_counter=False, **when)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=2,
        logger=False,
        callbacks=[checkpoints],
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    saved = folder / "last.ckpt"
    trainer.fit(Model(record), loader, ckpt_path=saved if saved.exists() else None)
    sampler.close()


def train_otherwise(mount: Path, folder: Path, record: Record) -> None:
    """Lightning would end the epoch at a number of batches that is not this one's."""
    for changed, reason in [
        ({"group_size": 5}, "begun with 2 ranks, group_size=3"),
        ({"batch_size": 8}, "begun with batches of 16 samples, not 8"),
    ]:
        with pytest.raises(UsageError, match=reason) as refused:
            train(mount, folder, record, **changed)
        assert "end of an epoch" in (refused.value.hint or "")
