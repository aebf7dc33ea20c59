"""Internal to torch_remote: what runs in a provider's containers.

It imports neither torch_remote nor its extension, so that a container needs neither.
"""

__version__ = "0.1.0"
