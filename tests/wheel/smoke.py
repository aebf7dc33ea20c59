"""Checks an installed torch-remote: `python smoke.py`, by the Python of its environment.

The environment needs torch and torch-remote only. Prints a line for each thing that works.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

import torch

import torch_remote

PATIENCE_S = 120
COMMAND = str(Path(sys.executable).with_name("torch-remote"))


def run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, f"{words} failed:\n{done.stdout}{done.stderr}"
    return done.stdout


def train(device: str) -> list[float]:
    """Two steps; the losses."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 1))
    inputs = torch.randn(32, 8)
    model, inputs = model.to(device), inputs.to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def check_place() -> str:
    """The package is the installed one, and its version names this torch."""
    place = Path(torch_remote.__file__)
    assert place.is_relative_to(sys.prefix), f"{place} is not in {sys.prefix}"
    minor = ".".join(torch.__version__.split(".")[:2])
    assert torch_remote.__version__.endswith(f"+torch{minor}"), torch_remote.__version__
    return f"torch_remote {torch_remote.__version__} in {place.parent}"


def check_packages() -> str:
    """Every package imports."""
    files = metadata.files("torch-remote") or []
    names = {each.parts[0] for each in files if each.name == "__init__.py"}
    assert {"torch_remote", "torch_remote_cli", "torch_modal"} <= names, names
    for name in sorted(names):
        run(sys.executable, "-c", f"import {name}")
    return "import " + ", ".join(sorted(names))


def check_paths() -> str:
    """The paths of the original TorchDevice, of which no file is installed."""
    code = "import TorchDevice.ops.nn.layers as layers; print(layers.Linear(2, 3).out_features)"
    assert run(sys.executable, "-c", code) == "3\n"
    paths = run(sys.executable, "-c", "from TorchDevice._paths import PATHS; print(*PATHS)").split()
    run(sys.executable, "-c", "".join(f"import TorchDevice.{path}\n" for path in paths))
    return f"import of {len(paths)} paths of TorchDevice"


def check_training() -> str:
    local, remote = train("cpu"), train("remote")
    assert torch.allclose(torch.tensor(local), torch.tensor(remote)), (local, remote)
    assert remote[1] < remote[0]
    return f"training on remote: losses {remote}"


def check_modal() -> str:
    code = "import torch, torch_modal; print(torch.ones(2).modal().sum().item())"
    assert run(sys.executable, "-c", code) == "2.0\n"
    return "torch.ones(2).modal()"


def check_commands() -> str:
    installed = f"torch-remote {metadata.version('torch-remote')}\n"
    assert run(COMMAND, "--version") == installed
    assert run(sys.executable, "-m", "torch_remote", "--version") == installed
    last = run(COMMAND, "doctor").splitlines()[-1]
    assert last.startswith("0 problems"), last
    return f"torch-remote --version, doctor ({last})"


def check_server() -> str:
    """The server program takes a client with its token, and no other."""
    with tempfile.TemporaryDirectory() as folder:
        token_file = Path(folder) / "token"
        token_file.write_text("the token of this test\n")
        token_file.chmod(0o600)
        words = [COMMAND, "serve", "--listen", "tcp://127.0.0.1:0", "--token-file", str(token_file)]
        server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            url = server.stdout.readline().removeprefix("listening on ").strip()
            with torch_remote.connect(url, token_file=token_file) as machine:
                assert torch.arange(4, device=machine.devices[0]).sum().item() == 6
            try:
                torch_remote.connect(url, token="another")
            except torch_remote.ConnectionError as error:
                assert "token" in str(error), error
            else:
                raise AssertionError("the server took a wrong token")
        finally:
            server.terminate()
            server.wait(PATIENCE_S)
    return "torch-remote serve --listen tcp://…, with a token"


def main() -> None:
    for check in (
        check_place,
        check_packages,
        check_paths,
        check_training,
        check_modal,
        check_commands,
        check_server,
    ):
        print("ok", check(), flush=True)


if __name__ == "__main__":
    main()
