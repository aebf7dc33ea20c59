"""The list of all changes that this package makes in torch's Python, to take them back.

Code that changes something in torch calls one of these instead of assigning:

    patch(owner, name, new)      sets an attribute of a module or a class
    wrap(owner, name, make)      the same for `make(its value)`, where TorchDevice changes it too
    patch_item(table, key, new)  sets an entry of a dict, such as a table of reducers
    on_undo(action)              for other changes: such as the `remove` of a hook's handle
    change_module(name, change)  calls `change(module)` once the module is imported
    with noting(owner, ...):     attributes that a function of PyTorch sets on these owners
    leave_to_python(function)    torch.compile does not compile calls of this function

    patch(torch.nn.Module, "to", _moving(torch.nn.Module.to))
    on_undo(register_optimizer_step_pre_hook(_before_step).remove)

`undo_all()` takes all changes back, the last one first: each attribute is the original object
again. `torch_remote._change_torch()` makes the changes again.

Not taken back: kernels in the dispatcher and the name of the backend, which PyTorch registers for
the life of the process, with `torch.remote` and the names in `DeviceType` and `ProfilerActivity`.
"""

from __future__ import annotations

from types import CodeType
from typing import Any

import torch

from torch_remote_patches import Patches

_changes = Patches()
patch = _changes.patch
wrap = _changes.wrap
patch_item = _changes.patch_item
on_undo = _changes.on_undo
change_module = _changes.change_module
noting = _changes.noting
undo_all = _changes.undo_all


def leave_to_python(function: Any, with_callees: bool = False) -> None:
    """torch.compile runs calls of this function as they are; `with_callees`: and what they call.

    Not where the function is a part of a larger graph: there `is_compiling()` is true.
    """
    frames = torch._C._dynamo.eval_frame
    if not hasattr(frames, "_FrameExecStrategy"):
        return  # a torch that has no such setting
    code = function if isinstance(function, CodeType) else function.__code__
    skip, default = frames._FrameAction.SKIP, frames._FrameAction.DEFAULT
    callees = skip if with_callees else default
    frames.set_code_exec_strategy(code, frames._FrameExecStrategy(skip, callees))
    as_before = frames._FrameExecStrategy(default, default)
    on_undo(lambda: frames.set_code_exec_strategy(code, as_before))
