"""torch.compile of every module, for three batch sizes in turn.

The default backend makes programs of the graphs that `aot_eager` runs call by call: its results on
`remote` are compared with those of `aot_eager` on the CPU, and with those of the module itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from both import SEED, Run, attempt, compare_where_cpu_works, gradients
from cases import Case, NotOnThisDevice, Scope
from comparing import tensors_of
from torch.testing._internal.common_modules import ModuleInfo, ModuleInput
from torch.testing._internal.common_utils import set_rng_seed

from suites.module_samples import MODES, MOST_SAMPLES, Sample, inputs_of, modules, sample_on

# On the CPU a backend stands for another: the default one for what programs are made of, and
# "as eager code" for no compiler.
ON_CPU = {"inductor": "aot_eager", "as eager code": None}
ON_DEVICE = {"as eager code": "inductor"}
BACKENDS = ("eager", "aot_eager", *ON_CPU)
TIMES = (1, 2, 3)

# Modules whose graphs compute otherwise than the module, on a local device too: PyTorch has a
# decomposition in Python that rounds otherwise than its kernel, or copies.
DECOMPOSED = {
    "nn.Dropout": "PyTorch decomposes dropout in Python: in evaluation it gives a copy",
    "nn.MultiLabelMarginLoss": "PyTorch decomposes multilabel_margin_loss_forward in Python",
    "nn.Softshrink": "PyTorch decomposes softshrink in Python: a zero has the other sign",
}


def cases(scope: Scope) -> Iterator[Case]:
    for info in modules(scope):
        for backend in BACKENDS:
            for mode in (*MODES, "no_grad"):
                check = partial(_check, info, backend, mode, scope)
                yield Case(info.name, f"{backend} {mode}", "float32", check)


def _check(info: ModuleInfo, backend: str, mode: str, scope: Scope, device: str) -> Iterator[str]:
    if backend == "as eager code" and info.name in DECOMPOSED:
        raise NotOnThisDevice(DECOMPOSED[info.name])
    training = mode == "train"
    runs = [
        partial(_run, info, module_input, backend, mode)
        for module_input in inputs_of(info, training, scope, MOST_SAMPLES)
    ]
    yield from compare_where_cpu_works(runs, device)


def _run(info: ModuleInfo, module_input: ModuleInput, backend: str, mode: str, device: str) -> Run:
    torch._dynamo.reset()
    sizes = _sizes_that_work(info, module_input, mode)
    if not sizes:
        raise NotImplementedError("the module takes none of these batches on a CPU")
    sample = sample_on(info, module_input, mode == "train", device)
    used = (ON_CPU if device == "cpu" else ON_DEVICE).get(backend, backend)
    compiled = sample.module if used is None else torch.compile(sample.module, backend=used)
    with torch.set_grad_enabled(mode != "no_grad"):
        found = [_step(compiled, sample, times) for times in sizes]
    return Run(found, sample.mover)


def _step(compiled: Any, sample: Sample, times: int) -> dict[str, Any]:
    args, kwargs = sample.inputs(times)
    set_rng_seed(SEED)
    outputs = compiled(*args, **kwargs)
    return {
        "outputs": outputs,
        "gradients": gradients(tensors_of(outputs), list(sample.module.parameters())),
        "buffers": [buffer.clone() for buffer in sample.module.buffers()],
    }


def _sizes_that_work(info: ModuleInfo, module_input: ModuleInput, mode: str) -> list[int]:
    """The batch sizes that the module accepts on a CPU: not every input begins with a batch."""
    sample = sample_on(info, module_input, mode == "train", "cpu")

    def works(times: int) -> bool:
        args, kwargs = sample.inputs(times)
        return not isinstance(attempt(lambda: sample.module(*args, **kwargs)), Exception)

    return [times for times in TIMES if works(times)]
