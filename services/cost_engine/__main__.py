"""`python -m services.cost_engine`"""

from gpuloom.runtime.service import run_service
from services.cost_engine.app import build
from services.cost_engine.config import CostConfig

if __name__ == "__main__":
    run_service("cost_engine", CostConfig, build)
