"""Operators whose gradients are compared with torch's: a module for each family, with a list CASES of its own."""

from __future__ import annotations
