"""`python -m services.webhook`"""

from gpuloom.runtime.service import run_service
from services.webhook.app import build
from services.webhook.config import WebhookConfig

if __name__ == "__main__":
    run_service("webhook", WebhookConfig, build)
