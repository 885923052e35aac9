"""The process of `lightconv selftest` that forks runs, which the tests ask too."""

from lightconv.selftest.forks import Answer, Server

__all__ = ["Answer", "Server"]
