"""`python -m services.optimizer`"""

from gpuloom.runtime.service import run_service
from services.optimizer.app import build
from services.optimizer.config import OptimizerConfig

if __name__ == "__main__":
    run_service("optimizer", OptimizerConfig, build)
