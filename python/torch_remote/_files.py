"""Files of the server's that tensors are made of, without passing this process.

A server with `serve --files DIR` lets its clients read what is in that folder.
"""

from __future__ import annotations

import operator
import os
import posixpath
from typing import NamedTuple

import torch

from . import _C
from ._backend import DeviceLike, existing_index, refuse_in_bad_fork

_BYTES, _TENSORS, _INDEX = 0, 1, 2  # FileForm in wire/files.h
_INDEX_SUFFIX = ".index.json"


Name = str | os.PathLike[str]


def _checked(name: Name) -> str:
    text = os.fspath(name)
    if not isinstance(text, str):
        raise TypeError(f"the name of a file is text, not {text!r}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"the name of a file is UTF-8, which {text!r} is not") from None
    return text


class ServerFile(NamedTuple):
    """A file of the server's, as `torch_remote.files()` lists it."""

    name: str
    size: int


def files(device: DeviceLike = None) -> list[ServerFile]:
    """The files that the device's server lets its clients read, in the order of their names."""
    refuse_in_bad_fork()
    return [ServerFile(*each) for each in _C.list_files(existing_index(device))]


def load(name: Name, device: DeviceLike = None) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file of the server's, by name.

    The server reads them; this process gets their names, dtypes and shapes, and does not wait for
    their bytes. The name of a checkpoint in several files is that of its index:
    `model.safetensors.index.json`.
    """
    refuse_in_bad_fork()
    name = _checked(name)
    index = existing_index(device)
    if not name.endswith(_INDEX_SUFFIX):
        return _C.open_file(index, name, _TENSORS).load(None)
    loaded: dict[str, torch.Tensor] = {}
    for shard, names in _C.open_file(index, name, _INDEX).shards():
        path = posixpath.join(posixpath.dirname(name), shard)
        found = _C.open_file(index, path, _TENSORS).load(names)
        missing = [each for each in names if each not in found]
        if missing:
            raise ValueError(f"{name} says that {path} has the tensor {missing[0]!r}: it has not")
        loaded |= found
    return loaded


class RemoteArray:
    """The elements of a file of the server's; a slice of it is a new tensor of one dimension."""

    def __init__(self, file: _C.RemoteFile, name: str, dtype: torch.dtype, index: int) -> None:
        self._file = file
        self._name = name
        self.dtype = dtype
        self.device = torch.device(torch._C._get_privateuse1_backend_name(), index)
        if file.length % dtype.itemsize:
            raise ValueError(
                f"{name} has {file.length} bytes, which are no whole number of {dtype}"
            )

    def __len__(self) -> int:
        return int(self._file.length // self.dtype.itemsize)

    def __getitem__(self, at: int | slice) -> torch.Tensor:
        if isinstance(at, slice):
            begin, end, step = at.indices(len(self))
            if step != 1:
                raise ValueError("a slice of a file has no step")
            return self._file.read(self.dtype, begin, max(0, end - begin))
        place = operator.index(at)
        if not -len(self) <= place < len(self):
            raise IndexError(f"element {place} of {self._name}, which has {len(self)}")
        return self._file.read(self.dtype, place % len(self), 1)[0]

    def __repr__(self) -> str:
        return f"<torch_remote.RemoteArray {self._name!r}: {len(self)} of {self.dtype}>"


def array(name: Name, dtype: torch.dtype, device: DeviceLike = None) -> RemoteArray:
    """A file of the server's as a source of tensors: `array("train.bin", torch.uint16)[a:b]`.

    It stays open on the server as long as the result lives. A slice is read when it is taken, and
    nothing waits for it.
    """
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"the dtype of an array is a torch.dtype, not {dtype!r}")
    refuse_in_bad_fork()
    name = _checked(name)
    index = existing_index(device)
    return RemoteArray(_C.open_file(index, name, _BYTES), name, dtype, index)
