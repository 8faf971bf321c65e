"""`python -m services.autoscaler`"""

from gpuloom.runtime.service import run_service
from services.autoscaler.app import build
from services.autoscaler.config import AutoscalerConfig

if __name__ == "__main__":
    run_service("autoscaler", AutoscalerConfig, build)
