"""`python -m torch_remote` is the command `torch-remote`."""

from __future__ import annotations

import sys

from torch_remote_cli import main

if __name__ == "__main__":
    sys.exit(main())
