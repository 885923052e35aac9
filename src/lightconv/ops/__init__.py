"""Lightweight and dynamic convolution as functions on tensors of shape [B, T, D]."""

from lightconv.ops.frame import final_state
from lightconv.ops.functional import (
    dynamicconv,
    dynamicconv_softmax,
    dynamicconv_step,
    lightconv,
    lightconv_softmax,
    lightconv_step,
)
from lightconv.ops.residual import dropout, dropout_add, dropout_add_norm
from lightconv.ops.vocabulary import topk_logprobs

__all__ = [
    "dropout",
    "dropout_add",
    "dropout_add_norm",
    "dynamicconv",
    "dynamicconv_softmax",
    "dynamicconv_step",
    "final_state",
    "lightconv",
    "lightconv_softmax",
    "lightconv_step",
    "topk_logprobs",
]
