"""What other libraries need in order to use our device as they use CUDA: `docs/libraries.md`.

One file for each library. A file changes a library when the program imports it, and never imports
it itself. All changes are in the list of `torch_remote/_patches.py`, which takes them back.

A file uses the library's own way to add a device where there is one (Lightning's registry). A
comment above each other change names the place in the library that needs it. The tests in
`tests/libraries` fail when a library stops needing a change.
"""

from __future__ import annotations

from . import accelerate, generation, lightning, safetensors, sentence_transformers, transformers


def install() -> None:
    safetensors.install()
    accelerate.install()
    transformers.install()
    generation.install()
    lightning.install()
    sentence_transformers.install()
