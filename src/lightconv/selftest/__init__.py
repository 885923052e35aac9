"""Promises about failures as checks that a user can run: `lightconv selftest`."""

from lightconv.selftest.damage import check_damage
from lightconv.selftest.kernels import check_kernels
from lightconv.selftest.promise import Promise
from lightconv.selftest.resume import check_resume
from lightconv.selftest.strangers import check_strangers

# docs/reliability.md lists all promises and the tests of the others.
PROMISES = (
    Promise("R1", "a run that is killed and resumed equals an undisturbed one", check_resume),
    Promise("R5", "a damaged checkpoint is never used", check_damage),
    Promise("R10", "the kernels equal the formulas", check_kernels),
    Promise("R12", "files from strangers run no code", check_strangers),
)
