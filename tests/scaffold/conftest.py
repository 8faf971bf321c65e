from tests.scenarios.conftest import run_directory

__all__ = ["run_directory"]
