"""`python -m services.mig_controller`"""

from gpuloom.runtime.service import run_service
from services.mig_controller.app import build
from services.mig_controller.config import MigConfig

if __name__ == "__main__":
    run_service("mig_controller", MigConfig, build)
