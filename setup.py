"""What pyproject.toml cannot say of a build: where a native part does not compile, none is installed. One of an earlier
version would do its work otherwise, which `build/` keeps, or an editable install."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_ext import build_ext


class BuildAnew(build_ext):
    """Removes what was compiled before."""

    def run(self) -> None:
        for path in (*self.get_outputs(), *self.get_output_mapping().values()):
            Path(path).unlink(missing_ok=True)
        super().run()


setup(cmdclass={"build_ext": BuildAnew})
