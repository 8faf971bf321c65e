"""`python -m services.discovery`"""

from gpuloom.runtime.service import run_service
from services.discovery.app import build
from services.discovery.config import DiscoveryConfig

if __name__ == "__main__":
    run_service("discovery", DiscoveryConfig, build)
