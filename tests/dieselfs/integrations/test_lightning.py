"""Lightning with two ranks, over a real mount."""

from pathlib import Path

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from dieselfs.errors import UsageError
from dieselfs.integrations.torch_loader import ChunkShuffleLoader
from dieselfs.integrations.torch_sampler import ChunkShuffleSampler
from tests.dieselfs.integrations.framework_ranks import (
    Numbers,
    Record,
    check_epochs,
    check_plan,
    run,
)
from tests.mount.mounting import needs_fuse

pytestmark = needs_fuse


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


def test_two_epochs(pets_mount: Path, tmp_path: Path) -> None:
    ranks = run(train, pets_mount, tmp_path / "run", workers=1)
    check_epochs(ranks, 2)
    check_plan(pets_mount)


@pytest.mark.parametrize(
    ("workers", "every", "kills"),
    # An epoch has 16 batches. Lightning 2.6 miscounts an epoch that it resumes from a checkpoint of
    # the last batch: it trains it again from the start if it is interrupted again.
    [(0, 5, (8, 17, 27)), (2, 8, (9, 18)), (2, "epoch", (18, 30))],
)
def test_interrupted(
    pets_mount: Path, tmp_path: Path, workers: int, every: int, kills: tuple[int, ...]
) -> None:
    whole = run(train, pets_mount, tmp_path / "whole", every=1000)
    check_epochs(whole, 2)
    for kill_at in (*kills, None):
        found = run(train, pets_mount, tmp_path / "run", kill_at, workers=workers, every=every)
    assert found == whole


def train_otherwise(mount: Path, folder: Path, record: Record) -> None:
    """Lightning would end the epoch at a number of batches that is not this one's."""
    for changed, reason in [
        ({"group_size": 5}, "begun with 2 ranks, group_size=3"),
        ({"batch_size": 8}, "begun with batches of 16 samples, not 8"),
    ]:
        with pytest.raises(UsageError, match=reason) as refused:
            train(mount, folder, record, **changed)
        assert "end of an epoch" in (refused.value.hint or "")


def test_a_state_of_another_division_is_refused(pets_mount: Path, tmp_path: Path) -> None:
    run(train, pets_mount, tmp_path / "run", 8)
    run(train_otherwise, pets_mount, tmp_path / "run")
