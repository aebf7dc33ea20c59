"""`python -m torch_remote_cli` is the command `torch-remote`."""

from __future__ import annotations

import sys

from . import main

if __name__ == "__main__":
    sys.exit(main())
