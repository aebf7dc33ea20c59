"""Tests of torch_remote that a user can run after installing it. They need no account anywhere.

pytest test_torch_remote.py -v         # also: python test_torch_remote.py
"""

from __future__ import annotations

import unittest

import torch

import torch_remote

if torch._C._get_privateuse1_backend_name() != "remote":
    raise unittest.SkipTest("torch_modal was imported first and has named the device")


class ImportTest(unittest.TestCase):
    """Import and C extension functionality."""

    def test_the_import_names_the_backend_and_adds_its_module_and_methods(self) -> None:
        self.assertTrue(hasattr(torch, "remote") and hasattr(torch.Tensor, "remote"))
        self.assertEqual(torch_remote._C.BUILT_FOR_TORCH.split(".")[0], "2")

    def test_every_public_name_is_there(self) -> None:
        for name in torch_remote.__all__:
            self.assertTrue(hasattr(torch_remote, name), name)


class DeviceTest(unittest.TestCase):
    """Device availability and properties."""

    def test_a_device_is_available_and_has_properties(self) -> None:
        self.assertTrue(torch.remote.is_available())
        self.assertGreaterEqual(torch.remote.device_count(), 1)
        self.assertTrue(torch.remote.get_device_name())
        self.assertGreater(torch_remote.backends.modal.get_device_properties().total_memory, 0)

    def test_devices_of_cloud_gpus_have_a_name_and_an_index_and_launch_nothing(self) -> None:
        registry = torch_remote.get_device_registry()
        for gpu in torch_remote.GPUType:
            device = torch_remote.create_modal_device(gpu)
            self.assertEqual(device.device_name, f"Modal {gpu.value}")
            self.assertEqual(registry.get_device_index(device), device.index)
            self.assertEqual(torch.device(device), device.device())
        self.assertNotEqual(device, torch_remote.create_modal_device("B200"))


class TensorTest(unittest.TestCase):
    """Remote tensor creation and operations."""

    def test_tensors_are_made_on_and_moved_to_the_device(self) -> None:
        for made in (torch.zeros(2, device="remote"), torch.zeros(2).remote()):
            self.assertEqual(str(made.device), "remote:0")
            self.assertTrue(made.is_remote)

    def test_operators_compute_what_the_cpu_computes(self) -> None:
        x, y = torch.randn(4, 4), torch.randn(4, 4)
        torch.testing.assert_close((x.remote() @ y.remote() + 1).cpu(), x @ y + 1)


class RemoteExecutionTest(unittest.TestCase):
    """Remote execution functionality."""

    def test_calls_are_sent_and_run_in_another_process(self) -> None:
        with torch_remote.count() as counted:
            result = torch.ones(64, 64, device="remote") @ torch.ones(64, 64, device="remote")
        self.assertGreaterEqual(counted.calls, 3)
        self.assertEqual(counted.syncs, 0)
        self.assertEqual(result.sum().item(), 64.0**3)

    def test_explain_says_where_an_operator_runs(self) -> None:
        self.assertEqual(torch_remote.explain("mm")[0].where, "on the server")
        self.assertEqual(torch_remote.explain("view")[0].where, "in this process")

    def test_a_second_machine_has_devices_of_its_own(self) -> None:
        device = torch_remote.create_device("local")
        x = torch.arange(3.0, device=device)
        self.assertEqual(x.device, device.device())
        self.assertEqual((x + 1).tolist(), [1, 2, 3])


class MixedDeviceTest(unittest.TestCase):
    """Mixed device operation handling."""

    def test_a_cpu_tensor_is_refused_and_a_scalar_is_not(self) -> None:
        x = torch.ones(2, device="remote")
        with self.assertRaisesRegex(RuntimeError, "same device.*remote:0.*cpu"):
            x + torch.ones(2)
        self.assertEqual((x + torch.tensor(1.0)).tolist(), [2, 2])


class ParameterTest(unittest.TestCase):
    """Parameter validation (dtype, copy, etc.)."""

    def test_dtype_and_copy_are_honoured(self) -> None:
        x = torch.randn(3, 3)
        y = x.to("remote", dtype=torch.float64, copy=True)
        self.assertEqual(y.dtype, torch.float64)
        self.assertIs(y.to("remote"), y)
        self.assertIsNot(y.to("remote", copy=True), y)

    def test_a_wrong_gpu_type_is_refused_with_the_right_ones(self) -> None:
        with self.assertRaisesRegex(ValueError, "Invalid GPU type 'X'. Valid types: "):
            torch_remote.create_modal_device("X")


class ErrorTest(unittest.TestCase):
    """Error handling and edge cases."""

    def test_a_device_that_does_not_exist_is_refused(self) -> None:
        with self.assertRaisesRegex(RuntimeError, "does not exist"):
            torch.ones(1, device="remote:15")

    def test_empty_and_scalar_tensors_work(self) -> None:
        self.assertEqual(torch.empty(0, device="remote").sum().item(), 0)
        self.assertEqual(torch.tensor(5, device="remote").item(), 5)

    def test_an_operator_that_fails_raises(self) -> None:
        with self.assertRaises(RuntimeError):
            (torch.ones(2, 3, device="remote") @ torch.ones(2, 3, device="remote")).cpu()


if __name__ == "__main__":
    unittest.main()
