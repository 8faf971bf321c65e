"""`python -m services.node_agent`"""

from gpuloom.runtime.service import run_service
from services.node_agent.app import build
from services.node_agent.config import AgentConfig

if __name__ == "__main__":
    run_service("node_agent", AgentConfig, build)
