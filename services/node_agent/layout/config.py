"""The settings of layouts."""

from dataclasses import dataclass
from pathlib import Path

from gpuloom.runtime.config import setting
from gpuloom.runtime.parsers import seconds, text


def _path(raw: str) -> Path:
    return Path(text(raw))


def _words(raw: str) -> tuple[str, ...]:
    return () if raw.strip() == "none" else tuple(text(raw).split())


@dataclass(frozen=True)
class LayoutConfig:
    dev_dir: Path = setting(
        "GPULOOM_AGENT_DEV_DIR",
        default=Path("/dev"),
        parse=_path,
        help="The host's /dev, where device files of new MIG instances are made; used by driver nvml",
    )
    driver_proc_dir: Path | None = setting(
        "GPULOOM_AGENT_DRIVER_PROC_DIR",
        default=None,
        parse=_path,
        help="Where the kernel driver shows the capabilities of MIG instances (driver/nvidia/capabilities); "
        "by default GPULOOM_AGENT_PROC_DIR",
    )
    reset_command: tuple[str, ...] = setting(
        "GPULOOM_AGENT_GPU_RESET_COMMAND",
        default=("nvidia-smi", "--gpu-reset", "-i"),
        parse=_words,
        help="Program that resets a GPU whose new MIG mode needs it; the UUID follows. "
        "The word none stands for no resets, as in virtual machines that can't",
    )
    mps_control: str = setting(
        "GPULOOM_AGENT_MPS_CONTROL",
        default="nvidia-cuda-mps-control",
        parse=text,
        help="NVIDIA's program that is the MPS daemon of a GPU and speaks to it",
    )
    restore_patience_s: float = setting(
        "GPULOOM_AGENT_RESTORE_TIMEOUT",
        default=30.0,
        parse=seconds,
        help="How long the agent waits at its start for layouts of before; slower GPUs stay closed",
    )
