"""The settings of delivery."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from gpuloom.placement.keeping import Enforcement
from gpuloom.runtime.config import setting
from gpuloom.runtime.parsers import choice, comma_list, text
from services.node_agent.delivery.core.handlers import (
    NVIDIA_HANDLERS,
    SETTING_ALLOWED,
    SETTING_REFUSED,
    HandlerRules,
)


class DeliveryWay(StrEnum):
    AUTO = "auto"
    NRI = "nri"
    ENV = "env"
    OFF = "off"


_NONE = "none"


def _names(raw: str) -> tuple[str, ...]:
    return () if raw.strip() == _NONE else comma_list(text)(raw)


def _path(raw: str) -> Path:
    return Path(text(raw))


@dataclass(frozen=True)
class DeliveryConfig:
    way: DeliveryWay = setting(
        "GPULOOM_AGENT_DELIVERY",
        default=DeliveryWay.AUTO,
        parse=choice(*DeliveryWay),
        help="How containers get their devices in mode gpuloom: nri, env, off, "
        "or auto (nri, or env where there is no NRI; for simulated GPUs by the simulated kubelet)",
    )
    nri_socket: Path = setting(
        "GPULOOM_AGENT_NRI_SOCKET",
        default=Path("/var/run/nri/nri.sock"),
        parse=_path,
        help="Socket on which the container runtime takes plugins",
    )
    cdi_folders: tuple[Path, ...] = setting(
        "GPULOOM_AGENT_CDI_DIRS",
        default=(Path("/etc/cdi"), Path("/var/run/cdi")),
        parse=comma_list(_path),
        help="Folders of CDI specs; a device in a later one hides its namesake in an earlier one",
    )
    cdi_kind: str = setting(
        "GPULOOM_AGENT_CDI_KIND",
        default="nvidia.com/gpu",
        parse=text,
        help="Kind under which CDI specs list GPUs and MIG instances by their UUIDs",
    )
    runtime_class: str = setting(
        "GPULOOM_AGENT_RUNTIME_CLASS",
        default="nvidia",
        parse=text,
        help="RuntimeClass of NVIDIA's runtime, by which pods get their devices under env",
    )
    refused_handlers: tuple[str, ...] = setting(
        SETTING_REFUSED,
        default=NVIDIA_HANDLERS,
        parse=_names,
        help="Runtime handlers under which a container could take every GPU, and is not created where "
        "delivery is nri; the word none stands for no handler",
    )
    allowed_to_use_them: tuple[str, ...] = setting(
        SETTING_ALLOWED,
        default=(),
        parse=_names,
        help="Whose pods may use those handlers all the same, as NAMESPACE or NAMESPACE/SERVICEACCOUNT, "
        "for instance gpu-operator; the agent's own namespace always may",
    )
    enforcement: Enforcement = setting(
        "GPULOOM_ENFORCEMENT",
        default=Enforcement.MPS,
        parse=choice(*Enforcement),
        help="For pods with a share of a GPU with an MPS daemon that do not say gpuloom.dev/enforcement: mps "
        "(they are limited) or none; the same for node agents, extender and MIG controller",
    )
    mps_dir: Path = setting(
        "GPULOOM_AGENT_MPS_DIR",
        default=Path("/run/gpuloom/mps"),
        parse=_path,
        help="Folder of the host with the pipes of MPS daemons; the same path for agent and containers",
    )
    pod_namespace: str = setting(
        "GPULOOM_POD_NAMESPACE",
        default="gpuloom-system",
        parse=text,
        help="Namespace of the pod this runs in",
    )

    def handler_rules(self) -> HandlerRules:
        allowed = {self.pod_namespace, *self.allowed_to_use_them}
        return HandlerRules(frozenset(self.refused_handlers), frozenset(allowed))
