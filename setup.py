"""Compiles the C++ kernels into the package; everything else is in pyproject.toml.

Where that fails (no compiler, an unusual platform) the install goes on without them: lightconv then
compiles them at first use, or runs its formulas and says so. The kernels know neither torch nor
Python, so one wheel per platform serves every version of both.
"""

import runpy
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

BUILD = runpy.run_path(str(Path(__file__).parent / "src/lightconv/ops/build.py"))


class BuildKernels(build_ext):
    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split(".")[:-1]) / BUILD["library_name"]())

    def build_extension(self, ext: Extension) -> None:
        target = Path(self.get_ext_fullpath(ext.name))
        if target.exists() and not BUILD["find_fault"](target):
            return
        try:
            BUILD["build"](target)
        except BUILD["BuildError"] as error:  # an optional extension may fail with this one
            raise CompileError(str(error)) from error


class PlatformWheel(bdist_wheel):
    def get_tag(self) -> tuple[str, str, str]:
        return ("py3", "none", super().get_tag()[2])


setup(
    ext_modules=[Extension("lightconv.ops._kernels", sources=[], optional=True)],
    cmdclass={"build_ext": BuildKernels, "bdist_wheel": PlatformWheel},
)
