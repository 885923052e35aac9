"""Where the time of a call goes, by what is computed: torch's profiler, sorted into a few heaps."""

from collections.abc import Callable

from torch.autograd.profiler_util import EventList, FunctionEvent
from torch.profiler import ProfilerActivity, profile, record_function

# The first heap with one of these in an event's name takes its own time, and that of what it calls
# if it is a whole part of the step.
WHOLE = {
    "vocabulary loss": ("LinearCrossEntropy",),
    # Its backward pass is torch's own, so that a product of batches is nobody else's.
    "attention": ("scaled_dot_product", "flash_attention", "BmmBackward", "SoftmaxBackward"),
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
    """The share of each heap in the time of call(); they add up to one."""
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
