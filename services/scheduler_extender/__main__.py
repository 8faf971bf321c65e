"""`python -m services.scheduler_extender`"""

from gpuloom.runtime.service import run_service
from services.scheduler_extender.app import build
from services.scheduler_extender.config import ExtenderConfig

if __name__ == "__main__":
    run_service("scheduler_extender", ExtenderConfig, build)
