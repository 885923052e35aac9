"""Processes that compute the same update in every way of benchmarks/scaling.py."""

import os
import subprocess
import sys

import pytest
from benchmarks.scaling import WAYS

from tests.harness.server import environment


@pytest.mark.parametrize("link", [(), ("--link", "100mbit")])
def test_every_way_is_measured(link: tuple[str, ...]) -> None:
    if link and os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    small = ["--recipe", "iwslt-de-en-dynamicconv-small", "--tokens", "64", "--rounds", "1"]
    command = [sys.executable, "-m", "benchmarks.scaling", *small, *link]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    if link and ("Operation not permitted" in done.stderr or "No such file" in done.stderr):
        pytest.skip(f"this machine cannot have network namespaces: {done.stderr.strip()[-200:]}")
    assert done.returncode == 0, done.stderr
    assert all(f"| {name} | " in done.stdout for name in (*WAYS, "each for itself"))
