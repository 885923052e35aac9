"""Lightweight and dynamic convolutions for PyTorch."""

__version__ = "0.1.0"
