"""Hugging Face's Trainer: train on any number of processes, and go on where the last run stopped, in the middle of an
epoch.

torchrun --nproc-per-node 2 examples/frameworks/trainer_train.py datasets/train --checkpoints run
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import EvalPrediction, Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

import streamvid as sv


class Classifier(nn.Module):
    """Three classes from the mean colour of a video."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 3)

    def forward(self, video: torch.Tensor, label: torch.Tensor, valid: torch.Tensor, **_: Any) -> dict[str, Any]:
        """Trainer gives a batch's values by their names; it wants the loss, and for evaluation the outputs."""
        logits = self.head(video.mean(dim=(1, 3, 4)))
        each = cross_entropy(logits, label, reduction="none")
        return {"loss": (each * valid).sum() / valid.sum().clamp(min=1), "logits": logits}


class StreamTrainer(Trainer):
    """A Trainer that takes its batches from StreamLoaders, which give every process its share on its device."""

    def __init__(self, loader: sv.StreamLoader, evaluation: sv.StreamLoader, **options: Any) -> None:
        super().__init__(callbacks=[SaveLoader(loader)], eval_dataset=evaluation, compute_metrics=accuracy, **options)
        self._loader, self._evaluation = loader, evaluation

    def get_train_dataloader(self) -> sv.StreamLoader:
        """The loader, not wrapped."""
        return self._loader

    def get_eval_dataloader(self, eval_dataset: Any = None) -> sv.StreamLoader:
        """The loader for evaluation, not wrapped."""
        return self._evaluation

    def training_step(self, model: nn.Module, inputs: dict[str, Any], *rest: Any) -> torch.Tensor:
        """Show which clips there are."""
        clips = [key for key, valid in zip(inputs["key"], inputs["valid"], strict=True) if valid]
        line = {"rank": self.args.process_index, "epoch": int(self.state.epoch or 0), "clips": clips}
        print(json.dumps(line), flush=True)
        return super().training_step(model, inputs, *rest)


class SaveLoader(TrainerCallback):
    """Adds the loader's state to each checkpoint."""

    def __init__(self, loader: sv.StreamLoader) -> None:
        self._loader = loader

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """The states of all processes are the same."""
        if state.is_world_process_zero:
            path = Path(args.output_dir, f"checkpoint-{state.global_step}", "loader.json")
            path.write_text(json.dumps(self._loader.state_dict()))


def accuracy(found: EvalPrediction) -> dict[str, float]:
    """Of the clips of all processes, without those that only fill batches."""
    label, valid = found.label_ids
    right = (found.predictions.argmax(axis=-1) == label)[valid]
    return {"accuracy": float(right.mean()), "evaluated": len(right)}


def main() -> None:
    """Train, from the last checkpoint if there is one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("dataset")
    parser.add_argument("--checkpoints", required=True, help="folder of the checkpoints")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--steps", type=int, default=-1, help="stop after so many")
    arguments = parser.parse_args()

    loader = sv.StreamLoader(
        arguments.dataset,
        batch_size=2,
        sampling=sv.Window(frames=4),
        transform=sv.Transform(resize=(32, 32), layout="TCHW", dtype="float32"),
    )
    evaluation = sv.StreamLoader(
        arguments.dataset,
        batch_size=2,
        sampling=sv.Window(frames=4, start="center"),
        transform=sv.Transform(resize=(32, 32), layout="TCHW", dtype="float32"),
        shuffle=False,
        last_batch="fill",  # Trainer gathers equally many outputs of every process
    )
    options = TrainingArguments(
        arguments.checkpoints,
        num_train_epochs=arguments.epochs,
        max_steps=arguments.steps,
        save_steps=1,
        ignore_data_skip=True,  # the loader resumes by itself
        eval_strategy="epoch",
        label_names=["label", "valid"],
        report_to="none",
        use_cpu=not torch.cuda.is_available(),
    )
    last = get_last_checkpoint(arguments.checkpoints) if Path(arguments.checkpoints).exists() else None
    if last is not None:
        loader.load_state_dict(json.loads(Path(last, "loader.json").read_text()))
    trainer = StreamTrainer(loader, evaluation, model=Classifier(), args=options)
    trainer.train(resume_from_checkpoint=last)
    # Where a model in DistributedDataParallel outlives its process group, PyTorch with gloo aborts one process in fifty
    # at exit.
    accelerator = trainer.accelerator
    del trainer
    accelerator.free_memory()
    accelerator.end_training()


if __name__ == "__main__":
    main()
