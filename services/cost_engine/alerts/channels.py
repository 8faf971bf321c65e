"""How people hear of a crossing: Alertmanager, webhooks that understand Slack's messages or JSON, and mail.

The addresses in a CostBudget are a user's: only HTTPS is followed there, and no redirects.
"""

import asyncio
import hashlib
import smtplib
import ssl
from collections.abc import Callable, Mapping, Sequence
from email.message import EmailMessage
from typing import Any

import aiohttp

from gpuloom.errors import UnavailableError
from gpuloom.model.budget import AlertChannel as ChannelSpec
from gpuloom.model.budget import ChannelType
from gpuloom.model.money import usd
from services.cost_engine.config import AlertsConfig
from services.cost_engine.core.budgets import Crossing
from services.cost_engine.core.exports import time_text
from services.cost_engine.ports import AlertChannel

TIMEOUT_S = 10.0
MAX_RECIPIENTS = 20

Body = Callable[[Crossing], Any]


class WebhookChannel:
    def __init__(self, name: str, url: str, body: Body) -> None:
        self.name = name
        self._url = url
        self._body = body

    async def send(self, crossing: Crossing) -> None:
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.post(self._url, json=self._body(crossing), allow_redirects=False) as answer,
            ):
                if not 200 <= answer.status < 300:
                    raise UnavailableError(f"the receiver answered {answer.status}")
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise UnavailableError(f"the receiver can't be reached: {type(error).__name__}") from error


class MailChannel:
    def __init__(self, config: AlertsConfig, recipients: Sequence[str]) -> None:
        self.name = f"email:{','.join(recipients)}"
        self._config = config
        self._recipients = recipients

    async def send(self, crossing: Crossing) -> None:
        try:
            await asyncio.to_thread(self._deliver, self._message(crossing))
        except (OSError, ValueError, smtplib.SMTPException) as error:
            raise UnavailableError(f"the mail server did not take it: {type(error).__name__}") from error

    def _message(self, crossing: Crossing) -> EmailMessage:
        """Raise ValueError for a name or a recipient that would write headers of its own."""
        message = EmailMessage()
        message["Subject"] = f"[{crossing.alert.severity}] GPU budget {crossing.budget}"
        message["From"] = self._config.smtp_from
        message["To"] = ", ".join(self._recipients)
        message["Message-ID"] = f"<{_fingerprint(crossing)}@gpuloom>"
        message.set_content(f"{crossing.text}.\n")
        return message

    def _deliver(self, message: EmailMessage) -> None:
        host, _, port = (self._config.smtp_address or "").rpartition(":")
        with smtplib.SMTP(host, int(port), timeout=TIMEOUT_S) as server:
            if self._config.smtp_tls:
                server.starttls(context=ssl.create_default_context())
            if self._config.smtp_username is not None:
                server.login(self._config.smtp_username, self._config.smtp_password)
            server.send_message(message)


class ConfiguredChannels:
    """Those of the installation, and those that the alert of a budget names."""

    def __init__(self, config: AlertsConfig) -> None:
        self._config = config

    def of(self, crossing: Crossing) -> list[AlertChannel]:
        found: list[AlertChannel] = []
        if self._config.alertmanager_url:
            url = f"{self._config.alertmanager_url.rstrip('/')}/api/v2/alerts"
            found.append(WebhookChannel("alertmanager", url, alertmanager_body))
        for spec in crossing.alert.channels:
            channel = self._named(spec)
            if channel is not None:
                found.append(channel)
        if not crossing.alert.channels:
            found += [
                channel for kind in ChannelType if (channel := self._named(ChannelSpec(kind))) is not None
            ]
        return found

    def _named(self, spec: ChannelSpec) -> AlertChannel | None:
        """None where the installation has no such receiver and the alert names none."""
        config = self._config
        if spec.type is ChannelType.EMAIL:
            named = [part.strip() for part in spec.config.get("to", "").split(",") if part.strip()]
            recipients = (named or list(config.smtp_to))[:MAX_RECIPIENTS]
            return MailChannel(config, recipients) if config.smtp_address and recipients else None
        is_slack = spec.type is ChannelType.SLACK
        own = _https(spec.config)
        url = own or (config.slack_url if is_slack else config.webhook_url)
        if url is None:
            return None
        room = spec.config.get("channel", "")
        if is_slack:
            return WebhookChannel(
                f"slack:{_short(own)}{room}", url, lambda crossing: slack_body(crossing, room)
            )
        return WebhookChannel(f"webhook:{_short(own)}", url, json_body)


def alertmanager_body(crossing: Crossing) -> list[dict[str, Any]]:
    return [
        {
            "labels": {
                "alertname": "GpuBudgetReached",
                "budget": crossing.budget,
                "alert": crossing.alert.name,
                "severity": str(crossing.alert.severity),
            },
            "annotations": {"summary": crossing.text},
        }
    ]


def slack_body(crossing: Crossing, room: str = "") -> dict[str, str]:
    return {"text": crossing.text} | ({"channel": room} if room else {})


def json_body(crossing: Crossing) -> dict[str, Any]:
    return {
        "id": _fingerprint(crossing),
        "budget": crossing.budget,
        "alert": crossing.alert.name,
        "severity": str(crossing.alert.severity),
        "thresholdPercent": crossing.alert.threshold_percent,
        "periodStart": time_text(crossing.period_start_ns),
        "spendUsd": f"{usd(crossing.spend):f}",
        "limitUsd": f"{usd(crossing.limit):f}",
        "text": crossing.text,
    }


def _fingerprint(crossing: Crossing) -> str:
    """The same for the same crossing: a receiver that hears it twice can tell."""
    which = f"{crossing.alert.name}-{crossing.alert.threshold_percent}-{crossing.limit}"
    return f"{crossing.budget_uid}-{crossing.period_start_ns}-{which}"


def _short(url: str | None) -> str:
    """Tells addresses apart without showing them: whoever has one of Slack's can write there."""
    return "" if url is None else hashlib.sha256(url.encode()).hexdigest()[:16]


def _https(config: Mapping[str, str]) -> str | None:
    url = config.get("url", "")
    return url if url.startswith("https://") else None
