"""Lightweight and dynamic convolution as functions on tensors of shape [B, T, D]."""

from lightconv.ops.functional import (
    dynamicconv,
    dynamicconv_softmax,
    dynamicconv_step,
    lightconv,
    lightconv_softmax,
    lightconv_step,
)

__all__ = [
    "dynamicconv",
    "dynamicconv_softmax",
    "dynamicconv_step",
    "lightconv",
    "lightconv_softmax",
    "lightconv_step",
]
