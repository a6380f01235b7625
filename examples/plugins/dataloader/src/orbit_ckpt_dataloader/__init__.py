"""Data iterators as items of checkpoints, which continue on another number of processes."""

from orbit_ckpt_dataloader.handler import DataHandler, DataRestore, DataSave
from orbit_ckpt_dataloader.loader import DataIterator, ShardedLoader
from orbit_ckpt_dataloader.resplit import same_examples, same_steps

__all__ = [
    "DataHandler",
    "DataIterator",
    "DataRestore",
    "DataSave",
    "ShardedLoader",
    "same_examples",
    "same_steps",
]
