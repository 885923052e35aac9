"""All promises that can be checked on one machine, by the names the documents give them."""

from lightconv.selftest.damage import check_damage
from lightconv.selftest.garbage import check_garbage
from lightconv.selftest.guards import check_divergence, check_memory
from lightconv.selftest.kernels import check_kernels
from lightconv.selftest.kills import check_kills, check_stops, check_twice
from lightconv.selftest.order import check_order
from lightconv.selftest.promise import Promise
from lightconv.selftest.restarts import check_restarts
from lightconv.selftest.strangers import check_strangers
from lightconv.selftest.together import check_together

PROMISES = (
    Promise("R1", "a run that is killed and resumed equals an undisturbed one", check_kills),
    Promise("R2", "two runs with one seed are identical", check_twice),
    Promise("R3", "the order of batches depends neither on ranks nor on workers", check_order),
    Promise("R4", "several ranks compute what one does that accumulates", check_together),
    Promise("R5", "a damaged checkpoint is never used", check_damage),
    Promise("R6", "a signal or a full disk loses nothing", check_stops),
    Promise("R7", "torchrun restarts a dead worker and the run goes on", check_restarts),
    Promise("R8", "a gradient that is not finite never reaches the parameters", check_divergence),
    Promise(
        "R9", "a batch that does not fit into memory is cut, with the same result", check_memory
    ),
    Promise("R10", "the kernels equal the formulas", check_kernels),
    Promise("R11", "no garbage crashes a reader of files", check_garbage),
    Promise("R12", "files from strangers run no code", check_strangers),
)
