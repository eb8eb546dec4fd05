"""Trainings with the Trainer of transformers over a mount."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Sampler
from transformers import Trainer, TrainingArguments

from dieselfs.errors import UsageError
from dieselfs.integrations.torch_loader import ChunkShuffleLoader
from dieselfs.integrations.torch_sampler import ChunkShuffleSampler
from tests.dieselfs.integrations.framework_ranks import Numbers, Record


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Linear(1, 1)

    def forward(self, numbers: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": self.weight(numbers.float()[:, None] / 500).mean()}


def collate(numbers: list[int]) -> dict[str, torch.Tensor]:
    return {"numbers": torch.tensor(numbers)}


class OurTrainer(Trainer):
    record: Record

    def get_train_dataloader(self) -> DataLoader[Any]:
        assert self.train_dataset is not None
        return ChunkShuffleLoader(
            self.train_dataset,
            self.args.per_device_train_batch_size,
            sampler=ChunkShuffleSampler(self.train_dataset, seed=1, group_size=3),
            num_workers=self.args.dataloader_num_workers,
            collate_fn=self.data_collator,
        )

    def training_step(self, model: Any, inputs: Any, *rest: Any, **options: Any) -> torch.Tensor:
        step = self.state.global_step
        self.record.trained(step, step // 16, inputs["numbers"].tolist())
        return super().training_step(model, inputs, *rest, **options)


def arguments(folder: Path, **options: Any) -> TrainingArguments:
    return TrainingArguments(
        str(folder),
        use_cpu=True,
        num_train_epochs=2,
        per_device_train_batch_size=16,
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        logging_strategy="no",
        save_strategy="steps",
        **options,
    )


def train(mount: Path, folder: Path, record: Record, workers: int = 0, every: int = 5) -> None:
    options = arguments(folder, dataloader_num_workers=workers, save_steps=every)
    trainer = OurTrainer(Model(), options, collate, Numbers(mount))
    trainer.record = record
    trainer.train(resume_from_checkpoint=any(folder.glob("checkpoint-*")) or None)


class SamplerAlone(Trainer):
    def _get_train_sampler(self, *arguments: Any) -> Sampler[int]:
        return ChunkShuffleSampler(self.train_dataset)


def train_with_a_plain_loader(mount: Path, folder: Path, record: Record) -> None:
    trainer = SamplerAlone(Model(), arguments(folder), collate, Numbers(mount))
    with pytest.raises(UsageError, match="most samples would be lost"):
        trainer.train()
