"""The largest of a row, equal ones in the order they stand: what a search keeps of a vocabulary."""

import torch
from torch import Tensor

from lightconv.ops.check import accumulate_dtype
from lightconv.ops.library import native


def topk(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """torch.topk along the last of two dimensions, with a promise about equal values.

    x       [N, V]
    returns values [N, k], largest first, and indices [N, k]; of equal values the lower index
            comes first, so that the result does not depend on how the search is done
    """
    V = x.shape[-1]
    if not 0 <= k <= V:
        raise ValueError(f"topk: k={k} must be in [0, {V}], the size of a row")
    # One more than asked for: what is left out may equal the last one taken.
    values, indices = x.topk(min(k + 1, V), dim=-1)
    rows = (values[:, 1:] == values[:, :-1]).any(-1).nonzero()[:, 0]
    values, indices = values[:, :k].contiguous(), indices[:, :k].contiguous()
    if len(rows) > 0:
        exact, places = x[rows].sort(dim=-1, descending=True, stable=True)
        values[rows], indices[rows] = exact[:, :k], places[:, :k]
    return values, indices


def topk_logprobs(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k most probable words of each row.

    logits  [N, V]
    returns log-probabilities [N, k], float32 or wider, largest first, and words [N, k] int64; of
            equal ones the lower word comes first
    """
    if _fits_kernel(logits, k) and native().library is not None:
        return _kernel(logits, k)
    return topk(torch.log_softmax(logits, -1, dtype=accumulate_dtype(logits.dtype)), k)


def _fits_kernel(logits: Tensor, k: int) -> bool:
    return (
        type(logits) is Tensor
        and logits.is_cpu
        and logits.dtype == torch.float32
        and logits.dim() == 2
        and logits.stride(1) == 1
        and 1 <= k <= logits.shape[1]
        and not (logits.requires_grad and torch.is_grad_enabled())
        and not torch.compiler.is_compiling()
    )


def _kernel(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """One pass in C++: the sum of exponentials and the k best together."""
    library = native().library
    assert library is not None
    N, V = logits.shape
    values = torch.empty(N, k)
    words = torch.empty(N, k, dtype=torch.int64)
    to = values.data_ptr(), words.data_ptr()
    if library.lightconv_topk(logits.data_ptr(), N, V, logits.stride(0), k, *to):
        raise MemoryError("the top-k kernel could not allocate its memory")
    return values, words
