"""The list of all changes that this package makes in torch's Python, to take them back.

Code that changes something in torch calls one of these instead of assigning:

    patch(owner, name, new)      sets an attribute of a module or a class
    patch_item(table, key, new)  sets an entry of a dict, such as a table of reducers
    on_undo(action)              for other changes: such as the `remove` of a hook's handle
    change_module(name, change)  calls `change(module)` once the module is imported
    with noting(owner, ...):     attributes that a function of PyTorch sets on these owners

    patch(torch.nn.Module, "to", _moving(torch.nn.Module.to))
    on_undo(register_optimizer_step_pre_hook(_before_step).remove)

`undo_all()` takes all changes back, the last one first: each attribute is the original object
again. `torch_remote._change_torch()` makes the changes again.

Not taken back: kernels in the dispatcher and the name of the backend, which PyTorch registers for
the life of the process, with `torch.remote` and the names in `DeviceType` and `ProfilerActivity`.
"""

from __future__ import annotations

from torch_remote_patches import Patches

_changes = Patches()
patch = _changes.patch
patch_item = _changes.patch_item
on_undo = _changes.on_undo
change_module = _changes.change_module
noting = _changes.noting
undo_all = _changes.undo_all
