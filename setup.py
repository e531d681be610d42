"""A step of the build that pyproject.toml cannot state: compiled native parts of an earlier build, which `build/` or an
editable install keeps, are removed first. If a part does not compile, none is installed, instead of an outdated one."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_ext import build_ext


class BuildAnew(build_ext):
    """Compiles the native parts after removing those of an earlier build."""

    def run(self) -> None:
        for path in (*self.get_outputs(), *self.get_output_mapping().values()):
            Path(path).unlink(missing_ok=True)
        super().run()


setup(cmdclass={"build_ext": BuildAnew})
