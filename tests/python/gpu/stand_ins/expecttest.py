"""In the place of the package of this name, where it is not installed: torch.testing wants its TestCase as a base class."""

from unittest import TestCase

__all__ = ["TestCase"]
