"""The leader's loop for preemptions: who leaves for a pod, or a gang, that has waited and fits nowhere.

kube-scheduler's own preemption never asks about a pod that only a card is missing for, so the leader plans.
A pod's way, one step a turn:
  1. a set of victims is planned; explain shows it, and in a dry run that is all,
  2. the devices are held for the pod, beside those that still use them,
  3. victims are told, and given the time that they ask for to save their work,
  4. they are evicted by the Eviction API; the pod is bound where its place is held.
From the second step on the plan is in the GPUHolds: whoever leads next finds a pod with a promise whose
devices others still use, and evicts those.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from gpuloom.codec.pod import bound_node, is_terminal, pod_ref, pod_request
from gpuloom.errors import GpuloomError, InvalidRequestError
from gpuloom.kube.objects import JsonObject, metadata_of, uid_of
from gpuloom.kube.parse import parse_time
from gpuloom.model.money import usd_text
from gpuloom.names import (
    ANNOTATION_CHECKPOINT_GRACE,
    ANNOTATION_CHECKPOINT_REQUESTED,
    ANNOTATION_CHECKPOINT_TIME,
    ANNOTATION_NO_DISRUPT,
    ANNOTATION_NO_PREEMPT,
)
from gpuloom.placement.gangs.preemption import (
    DisruptionBudget,
    Field,
    PreemptionPlan,
    Victim,
    plan_preemption,
    units_of,
)
from gpuloom.placement.gangs.sites import Member, Steps
from gpuloom.runtime.clock import Clock
from services.scheduler_extender.core.gangs.membership import gang_of
from services.scheduler_extender.core.gangs.phases import is_gated, priority_of
from services.scheduler_extender.core.verbs.filtering import was_tried
from services.scheduler_extender.planning.gangs import GangLoop
from services.scheduler_extender.planning.sites import Grounds
from services.scheduler_extender.planning.slices import in_slices
