"""Promises about failures as checks that a user can run: `lightconv selftest`."""

from lightconv.selftest.checks import PROMISES

__all__ = ["PROMISES"]
