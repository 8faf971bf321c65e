"""`python -m services.console`"""

from gpuloom.runtime.service import run_service
from services.console.app import build
from services.console.config import ConsoleConfig

if __name__ == "__main__":
    run_service("console", ConsoleConfig, build)
