"""Replaces the package of this name if it is missing: torch.testing wants its TestCase."""

from unittest import TestCase

__all__ = ["TestCase"]
