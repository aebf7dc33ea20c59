"""One rank of test_distributed.py: each function is a check, and runs in all ranks in this order.

Every rank has an embedded server, and a CPU tensor beside each remote one: PyTorch's own Gloo does
the same with them in this process.
"""

from __future__ import annotations

import copy
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

import torch_remote

CHECKS: list[Callable[[], None]] = []


def check(function: Callable[[], None]) -> Callable[[], None]:
    CHECKS.append(function)
    return function


def same(remote: torch.Tensor, local: torch.Tensor) -> None:
    assert remote.device.type == "remote" and local.device.type == "cpu"
    assert remote.dtype == local.dtype and torch.equal(remote.cpu(), local)


def pair(*sizes: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """The same random numbers on both devices, other ones in each rank."""
    local = torch.randn(
        *sizes, generator=torch.Generator().manual_seed(10 * seed + dist.get_rank())
    )
    return local.to("remote"), local


@check
def reductions_are_as_with_gloo() -> None:
    for op in (ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX):
        remote, local = pair(1000)
        for tensor in (remote, local):
            dist.all_reduce(tensor, op)
        same(remote, local)
    bits = torch.tensor([3 + dist.get_rank(), 8], device="remote")
    dist.all_reduce(bits, ReduceOp.BOR)
    assert bits.tolist() == [7, 8]
    remote, local = pair(7)
    for tensor in (remote, local):
        dist.reduce(tensor, 1)
    if dist.get_rank() == 1:
        same(remote, local)


@check
def an_average_is_the_sum_divided() -> None:
    remote, local = pair(5)
    dist.all_reduce(remote, ReduceOp.AVG)
    dist.all_reduce(local)
    same(remote, local / 2)


@check
def tensors_that_are_not_contiguous_are_taken() -> None:
    remote, local = pair(6, 4)
    dist.all_reduce(remote.t()[1:3])
    part = local.t()[1:3].contiguous()
    dist.all_reduce(part)
    local.t()[1:3] = part
    same(remote, local)


@check
def a_collective_is_one_call_and_does_not_wait() -> None:
    tensor = torch.ones(3, device="remote")
    dist.all_reduce(tensor)  # tells the server the signature
    dist.barrier()
    before = torch_remote.stats()
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    work.wait()
    after = torch_remote.stats()
    assert (after.calls - before.calls, after.syncs - before.syncs) == (1, 0)
    assert tensor.tolist() == [4, 4, 4]


@check
def gathers_and_scatters_are_as_with_gloo() -> None:
    remote, local = pair(2, 3)
    results: list[list[torch.Tensor]] = []
    for tensor in (remote, local):
        gathered = [torch.empty_like(tensor) for _ in range(2)]
        dist.all_gather(gathered, tensor)
        into = tensor.new_empty(4, 3)
        dist.all_gather_into_tensor(into, tensor)
        at_root = [torch.empty_like(tensor) for _ in range(2)] if dist.get_rank() == 0 else None
        dist.gather(tensor, at_root, 0)
        part = torch.empty_like(tensor)
        dist.scatter(part, [tensor, tensor * 2] if dist.get_rank() == 1 else None, 1)
        summed = tensor.new_empty(1, 3)
        dist.reduce_scatter_tensor(summed, tensor)
        from_list = tensor.new_empty(3)
        dist.reduce_scatter(from_list, list(tensor))
        results.append([*gathered, into, *(at_root or []), part, summed, from_list])
    for on_remote, on_cpu in zip(*results, strict=True):
        same(on_remote, on_cpu)


@check
def a_broadcast_and_objects_reach_all() -> None:
    remote, local = pair(4)
    for tensor in (remote, local):
        dist.broadcast(tensor, 1)
    same(remote, local)
    objects = [{"rank": dist.get_rank()}]
    dist.broadcast_object_list(objects, 1, device=torch.device("remote"))
    assert objects == [{"rank": 1}]


@check
def all_to_all_takes_lists_and_unequal_parts() -> None:
    rank = dist.get_rank()
    inputs = [torch.full((2,), 10.0 * rank + i, device="remote") for i in range(2)]
    outputs = [torch.empty(2, device="remote") for _ in range(2)]
    dist.all_to_all(outputs, inputs)
    assert [output[0].item() for output in outputs] == [rank, 10 + rank]
    source = torch.arange(3.0, device="remote") + 10 * rank
    target = torch.empty(4 if rank == 0 else 2, device="remote")
    dist.all_to_all_single(target, source, [2, 2] if rank == 0 else [1, 1], [2, 1])
    assert target.tolist() == ([0, 1, 10, 11] if rank == 0 else [2, 12])


@check
def ranks_send_to_each_other_in_any_order() -> None:
    other = 1 - dist.get_rank()
    ours, theirs = torch.full((2,), float(other), device="remote"), torch.empty(2, device="remote")
    works = [dist.irecv(theirs, other), dist.isend(ours, other)]
    for work in works:
        assert work is not None
        work.wait()
    assert theirs.tolist() == [dist.get_rank()] * 2
    batch = [dist.P2POp(dist.irecv, ours, other), dist.P2POp(dist.isend, theirs, other)]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    assert ours.tolist() == [other] * 2


@check
def a_wait_sends_no_later_receive() -> None:
    """The server would wait in the second one, and not reach the send that it depends on."""
    tensors = [torch.ones(2, device="remote"), torch.empty(2, device="remote")]
    if dist.get_rank() == 0:
        works = [dist.irecv(tensor, 1) for tensor in tensors]
        works[0].wait()
        dist.send(tensors[0] + 1, 1)
        works[1].wait()
        assert tensors[1].tolist() == [2, 2]
    else:
        dist.send(tensors[0], 0)
        dist.recv(tensors[1], 0)
        dist.send(tensors[1], 0)


@check
def a_barrier_waits_for_the_others() -> None:
    mark = Path(sys.argv[1]) / "mark"
    if dist.get_rank() == 0:
        mark.write_text("here")
    dist.barrier()
    assert mark.exists()


@check
def a_barrier_takes_a_local_rank_and_a_timeout_in_every_group() -> None:
    local_rank = int(os.environ["LOCAL_RANK"])
    for backend in ("remote", "gloo", "cpu:gloo,remote:remote"):
        group = dist.new_group(backend=backend)
        dist.barrier(group, False, [local_rank])
        dist.barrier(group=group, timeout=timedelta(seconds=100))
        work = dist.barrier(group, async_op=True, device_ids=[local_rank])
        assert work is not None
        work.wait()


def train(model: Any, data: list[torch.Tensor]) -> list[torch.Tensor]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for batch in data:
        optimizer.zero_grad()
        loss = (model(batch) ** 2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


def network() -> torch.nn.Module:
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4))


@check
def ddp_trains_as_on_the_cpu_bit_for_bit() -> None:
    data = [pair(5, 6, seed=i) for i in range(4)]
    local = DistributedDataParallel(network())
    remote = DistributedDataParallel(network().to("remote"), bucket_cap_mb=1)
    for on_remote, on_cpu in zip(
        train(remote, [r for r, _ in data]), train(local, [c for _, c in data]), strict=True
    ):
        same(on_remote, on_cpu)
    for one, other in zip(remote.parameters(), local.parameters(), strict=True):
        same(one.detach(), other.detach())


@check
def compiled_ddp_trains_as_on_the_cpu_bit_for_bit() -> None:
    data = [pair(5, 6, seed=i) for i in range(4)]
    local = torch.compile(DistributedDataParallel(network()), backend="aot_eager")
    remote = torch.compile(DistributedDataParallel(network().to("remote"), bucket_cap_mb=1))
    for on_remote, on_cpu in zip(
        train(remote, [r for r, _ in data]), train(local, [c for _, c in data]), strict=True
    ):
        same(on_remote, on_cpu)
    for one, other in zip(remote.parameters(), local.parameters(), strict=True):
        same(one.detach(), other.detach())


@check
def fsdp2_trains_as_one_process() -> None:
    mesh = init_device_mesh("remote", (2,))
    whole = network()
    sharded = copy.deepcopy(whole).to("remote")
    for layer in (sharded[0], sharded[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    data = [pair(5, 6, seed=i) for i in range(3)]
    train(sharded, [remote for remote, _ in data])
    batches = [[torch.empty(5, 6) for _ in range(2)] for _ in data]
    for both, (_, local) in zip(batches, data, strict=True):
        dist.all_gather(both, local)
    train(whole, [torch.cat(both) for both in batches])
    for one, other in zip(sharded.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(one.full_tensor().detach().cpu(), other.detach())


@check
def dtensor_multiplies_sharded_matrices() -> None:
    mesh = init_device_mesh("remote", (2,))
    torch.manual_seed(5)
    a, b = torch.randn(4, 6), torch.randn(6, 2)
    columns = distribute_tensor(a.to("remote"), mesh, [Shard(1)])
    rows = distribute_tensor(b.to("remote"), mesh, [Shard(0)])
    product = (columns @ rows).redistribute(mesh, [Replicate()])
    torch.testing.assert_close(product.to_local().cpu(), a @ b)
    moved = columns.redistribute(mesh, [Shard(0)])
    assert torch.equal(moved.to_local().cpu(), a.chunk(2)[dist.get_rank()])


@check
def a_subgroup_of_one_rank_works() -> None:
    groups = [dist.new_group([rank]) for rank in range(2)]
    remote, local = pair(3)
    dist.all_reduce(remote, group=groups[dist.get_rank()])
    same(remote, local)


@check
def what_does_not_fit_is_refused_and_named() -> None:
    wrong = [torch.empty(3, device="remote"), torch.empty(2, device="remote")]
    dist.all_gather(wrong, torch.zeros(2, device="remote"))  # in both ranks, so nobody waits
    try:
        wrong[1].tolist()
    except torch_remote.RemoteError as error:
        assert "all_gather" in str(error) and "3 elements where 2 belong" in str(error), error
        assert "distributed_rank.py" in str(error), error
    else:
        raise AssertionError("nothing was raised")
    tensor = torch.ones(1, device="remote")
    dist.all_reduce(tensor)
    assert tensor.item() == 2


@check
def a_rank_that_does_not_come_is_an_error_after_the_time_limit() -> None:
    group = dist.new_group(timeout=timedelta(seconds=2))
    if dist.get_rank() == 0:
        tensor = torch.ones(1, device="remote")
        begin = time.monotonic()
        dist.all_reduce(tensor, group=group)
        try:
            tensor.item()
        except torch_remote.RemoteError as error:
            assert "imed out" in str(error), error
        else:
            raise AssertionError("nothing was raised")
        assert time.monotonic() - begin < 30
    dist.barrier()


@check
def a_rank_that_dies_is_an_error() -> None:
    if dist.get_rank() == 1:
        return  # the end of this process
    tensor = torch.ones(1, device="remote")
    dist.all_reduce(tensor)
    try:
        tensor.item()
    except torch_remote.RemoteError as error:
        assert "all_reduce_" in str(error), error
        return
    raise AssertionError("nothing was raised")


def main() -> None:
    folder = Path(sys.argv[1])
    dist.init_process_group("cpu:gloo,remote:remote", timeout=timedelta(seconds=60))
    outcomes: dict[str, str] = {}
    for function in CHECKS:
        try:
            function()
            outcomes[function.__name__] = ""
        except Exception:
            outcomes[function.__name__] = traceback.format_exc()
    (folder / f"rank{dist.get_rank()}.json").write_text(json.dumps(outcomes))
    os._exit(0)


if __name__ == "__main__":
    main()
