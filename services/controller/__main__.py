"""`python -m services.controller`"""

from gpuloom.runtime.service import run_service
from services.controller.app import build
from services.controller.config import ControllerConfig

if __name__ == "__main__":
    run_service("controller", ControllerConfig, build)
