"""Time of a call by kind of operation, from torch's profiler."""

from collections.abc import Callable

from torch.autograd.profiler_util import EventList, FunctionEvent
from torch.profiler import ProfilerActivity, profile, record_function

# An event belongs to the first heap with one of these names in its own name; an event of WHOLE also
# takes the time of the events it calls.
WHOLE = {
    "vocabulary loss": ("LinearCrossEntropy",),
    # No other part of the step has batched products in its backward pass.
    "attention": ("attention", "BmmBackward", "SoftmaxBackward"),
    "optimiser": ("Optimizer.step", "foreach_mul", "linalg_vector_norm"),
}
HEAPS = {
    "matrix products": ("mm", "matmul", "linear"),
    "convolution": ("dynamicconv", "lightconv_", "DynamicConv", "LightConv"),
    "dropout, residual, norm": ("residual", "Residual", "layer_norm", "dropout"),
}
REST = "element-wise, copies, memory"
PYTHON = "Python and the dispatcher"


def breakdown(call: Callable[[], object]) -> dict[str, float]:
    """Share of each heap in the time of call(); the shares add up to one."""
    call()
    with profile(activities=[ProfilerActivity.CPU]) as found, record_function("whole call"):
        call()
    events = found.events()
    assert isinstance(events, EventList)
    whole = next(event for event in events if event.name == "whole call")
    heaps = dict.fromkeys([*HEAPS, *WHOLE, REST, PYTHON], 0.0)
    for event in events:
        if event.thread == whole.thread:
            heaps[_heap(event)] += event.self_cpu_time_total
    total = sum(heaps.values())
    return {name: value / total for name, value in heaps.items()}


def _heap(event: FunctionEvent) -> str:
    above: FunctionEvent | None = event
    while above is not None:
        for heap, names in WHOLE.items():
            if any(name in above.name for name in names):
                return heap
        above = above.cpu_parent
    for heap, names in HEAPS.items():
        if any(name in event.name for name in names):
            return heap
    outside = event.name == "whole call" or event.name.startswith("autograd::engine")
    return PYTHON if outside else REST
