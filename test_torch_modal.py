"""Tests of torch_modal that a user can run after installing it. They need no Modal account.

python test_torch_modal.py             # also: pytest test_torch_modal.py
python test_torch_modal.py --verbose   # one line for each test
python test_torch_modal.py --debug     # with the log of every call; ends at the first failure
"""

from __future__ import annotations

import argparse
import os
import sys
import unittest

if __name__ == "__main__" and "--debug" in sys.argv:
    os.environ["TORCH_REMOTE_LOG"] = "debug"  # read when the package is loaded

import torch

import torch_modal

NAME = torch._C._get_privateuse1_backend_name()
if NAME != "modal":
    raise unittest.SkipTest("torch_remote was imported first and has named the device")


class ImportTest(unittest.TestCase):
    """Import and C extension functionality."""

    def test_the_import_names_the_backend_and_adds_its_module_and_methods(self) -> None:
        self.assertTrue(hasattr(torch, "modal"))
        self.assertTrue(hasattr(torch.Tensor, "modal") and hasattr(torch.nn.Module, "modal"))
        self.assertEqual(str(torch.device("modal", 1)), "modal:1")

    def test_the_extension_moves_tensors_and_has_generators(self) -> None:
        torch_modal._C._init()
        moved = torch_modal._C.modal(torch.ones(2), 0, torch.float64, False, True)
        self.assertEqual((str(moved.device), moved.dtype), ("modal:0", torch.float64))
        self.assertEqual(torch_modal._C._get_default_generator(0).device, torch.device("modal:0"))

    def test_remote_execution_is_enabled_by_default_and_can_be_switched(self) -> None:
        x = torch.arange(4.0).modal()
        self.assertTrue(torch_modal.is_remote_execution_enabled())
        torch_modal.disable_remote_execution()
        self.assertFalse(torch_modal.is_remote_execution_enabled())
        self.assertEqual((x + 1).tolist(), [1, 2, 3, 4])
        torch_modal.enable_remote_execution()
        self.assertEqual((x + 1).tolist(), [1, 2, 3, 4])


class DeviceTest(unittest.TestCase):
    """Device availability and properties."""

    def test_there_are_two_devices(self) -> None:
        self.assertTrue(torch_modal.modal.is_available())
        self.assertEqual(torch_modal.modal.device_count(), 2)
        self.assertEqual(torch.modal.device_count(), 2)

    def test_a_device_has_a_name_and_properties(self) -> None:
        if "TORCH_REMOTE" not in os.environ:
            self.assertEqual(torch_modal.modal.get_device_name(), "Modal Device")
        self.assertGreater(torch_modal.modal.get_device_properties(0).total_memory, 0)

    def test_the_current_device_can_be_changed(self) -> None:
        with torch.modal.device(1):
            self.assertEqual(torch_modal.modal.current_device(), 1)
            self.assertEqual(torch.ones(1).modal().device.index, 1)
        torch_modal.modal.set_device(0)
        self.assertEqual(torch_modal.modal.current_device(), 0)

    def test_random_numbers_repeat_after_a_seed_and_a_state(self) -> None:
        torch_modal.modal.manual_seed(1)
        state = torch_modal.modal.get_rng_state()
        first = torch.randn(3, device="modal").tolist()
        torch_modal.modal.set_rng_state(state)
        self.assertEqual(torch.randn(3, device="modal").tolist(), first)
        torch_modal.modal.synchronize()


class TensorTest(unittest.TestCase):
    """Modal tensor creation and operations."""

    def test_tensors_are_made_on_and_moved_to_the_device(self) -> None:
        for made in (
            torch.zeros(2, device="modal"),
            torch.zeros(2).modal(),
            torch.zeros(2).to("modal"),
        ):
            self.assertEqual(str(made.device), "modal:0")
            self.assertTrue(made.is_modal)
        self.assertIsInstance(made, torch_modal.modal.FloatTensor)

    def test_operators_compute_what_the_cpu_computes(self) -> None:
        x, y = torch.randn(4, 4), torch.randn(4, 4)
        a, b = x.modal(), y.modal()
        for function in (torch.mm, torch.add, torch.mul, lambda p, q: (p @ q).relu().sum(0)):
            torch.testing.assert_close(function(a, b).cpu(), function(x, y))

    def test_a_model_trains(self) -> None:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
        model = model.modal()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        inputs = torch.randn(32, 8).modal()
        targets = inputs.sum(1, keepdim=True)
        losses = []
        for _ in range(20):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        self.assertLess(losses[-1].item(), losses[0].item())


class MixedDeviceTest(unittest.TestCase):
    """Mixed device operation handling."""

    def test_a_cpu_tensor_is_refused_and_named(self) -> None:
        x = torch.ones(2, 2).modal()
        for function in (lambda: x.mm(torch.ones(2, 2)), lambda: x + torch.ones(2, 2)):
            with self.assertRaisesRegex(RuntimeError, "same device.*modal:0.*cpu"):
                function()

    def test_the_two_devices_are_distinct(self) -> None:
        with self.assertRaisesRegex(RuntimeError, "same device"):
            torch.ones(2, device="modal:0") + torch.ones(2, device="modal:1")

    def test_numbers_and_scalar_cpu_tensors_are_allowed(self) -> None:
        x = torch.ones(2).modal()
        self.assertEqual((x * 2 + torch.tensor(1.0)).tolist(), [3, 3])


class ParameterTest(unittest.TestCase):
    """Parameter validation (dtype, copy, etc.)."""

    def test_dtype_device_and_copy_are_honoured(self) -> None:
        x = torch.randn(3, 3)
        y = x.modal(dtype=torch.float64, copy=True)
        self.assertEqual(y.dtype, torch.float64)
        self.assertEqual(x.modal(1).device.index, 1)
        self.assertEqual(x.modal("modal:1", torch.float16, False, True).dtype, torch.float16)
        self.assertIs(y.modal(), y)
        self.assertIsNot(y.modal(copy=True), y)
        wide = torch.randn(1, 2, 3, 4).modal(memory_format=torch.channels_last)
        self.assertTrue(wide.is_contiguous(memory_format=torch.channels_last))


class ErrorTest(unittest.TestCase):
    """Error handling and edge cases."""

    def test_a_device_that_does_not_exist_is_refused(self) -> None:
        for device in ("modal:7", 7, -3):
            with self.assertRaisesRegex((RuntimeError, ValueError), "exist"):
                torch.ones(1).modal(device)

    def test_another_kind_of_device_is_refused(self) -> None:
        with self.assertRaises((RuntimeError, ValueError)):
            torch.ones(1).modal("cpu")

    def test_empty_and_scalar_tensors_work(self) -> None:
        self.assertEqual(torch.empty(0).modal().sum().item(), 0)
        self.assertEqual(torch.tensor(5).modal().item(), 5)

    def test_an_operator_that_fails_raises(self) -> None:
        with self.assertRaises(RuntimeError):
            torch.ones(2, 3).modal().mm(torch.ones(2, 3).modal()).cpu()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--debug", action="store_true", help="log every call; end at a failure")
    parser.add_argument("--verbose", "-v", action="store_true", help="one line for each test")
    options, rest = parser.parse_known_args()
    unittest.main(
        argv=[sys.argv[0], *rest],
        verbosity=2 if options.verbose or options.debug else 1,
        failfast=options.debug,
    )
