"""What kind of work a pod does. Pure.

A label decides; else the model, where it is sure enough; else rules that a person would agree with; else the
class is not known, and the answer says why.
"""

import numpy as np

from gpuloom.model.optimization import Classification, ClassSource, WorkloadClass
from services.optimizer.core.features import features_of
from services.optimizer.core.model import Forest, probabilities
from services.optimizer.core.run import Run
from services.optimizer.core.workload import Workload, requested_gpus

LEAST_CONFIDENCE = 0.6
IDLE_RATIO = 0.02
IDLE_AFTER_S = 600.0
BUSY_RATIO = 0.6
LONG_S = 1800.0

LABELS = {
    "training": WorkloadClass.TRAINING,
    "critical": WorkloadClass.TRAINING,
    "inference": WorkloadClass.INFERENCE,
    "serving": WorkloadClass.INFERENCE,
    "interactive": WorkloadClass.INTERACTIVE,
    "dev": WorkloadClass.INTERACTIVE,
    "development": WorkloadClass.INTERACTIVE,
    "batch": WorkloadClass.BATCH,
}
_WORDS = (
    (("notebook", "jupyter", "vscode", "workspace"), WorkloadClass.INTERACTIVE),
    (("serve", "serving", "infer", "triton", "vllm"), WorkloadClass.INFERENCE),
    (("train", "finetune", "pretrain"), WorkloadClass.TRAINING),
)


def classify(workload: Workload, run: Run | None, forest: Forest | None) -> Classification:
    """`run` None: the pod has not been seen on a GPU yet."""
    labelled = LABELS.get(workload.type_label.strip().lower())
    if labelled is not None:
        reason = f"it is labelled {workload.type_label}"
        return Classification(labelled, 1.0, ClassSource.LABEL, reason)
    row = None if run is None else features_of(run, workload)
    if forest is not None and row is not None and run is not None:
        found = probabilities(forest, row[np.newaxis, :])[0]
        ranked = sorted(zip(forest.classes, found.tolist(), strict=True), key=lambda each: -each[1])
        best, probability = ranked[0]
        if probability >= LEAST_CONFIDENCE:
            reason = f"measured for {run.measured_ns / 6e10:.0f} min, {probability:.0%} likely"
            return Classification(best, probability, ClassSource.MODEL, reason, tuple(ranked))
        by_rule = by_rules(workload, run)
        if by_rule.workload_class is best:
            return by_rule
        reason = f"{best} is only {probability:.0%} likely"
        return Classification(WorkloadClass.UNKNOWN, 0.0, ClassSource.MODEL, reason, tuple(ranked))
    return by_rules(workload, run)


def by_rules(workload: Workload, run: Run | None) -> Classification:
    mean = None if run is None else run.mean_ratio
    if run is not None and mean is not None and mean < IDLE_RATIO and run.measured_ns > IDLE_AFTER_S * 1e9:
        return _ruled(WorkloadClass.IDLE, 0.9, f"below {IDLE_RATIO:.0%} for {run.duration_s / 60:.0f} min")
    names = f"{workload.signature.stem} {workload.signature.image} {workload.signature.command}".lower()
    for words, found in _WORDS:
        if any(word in names for word in words):
            return _ruled(found, 0.6, f"its name, image or command says {found}")
    if workload.serves and workload.owner.kind in ("Deployment", "StatefulSet"):
        return _ruled(WorkloadClass.INFERENCE, 0.6, f"a {workload.owner.kind} that listens on a port")
    if workload.owner.kind == "Job" and run is not None and mean is not None:
        long = run.duration_s > LONG_S and mean > BUSY_RATIO and requested_gpus(workload.request) >= 1
        found = WorkloadClass.TRAINING if long else WorkloadClass.BATCH
        return _ruled(found, 0.5, f"a Job of {run.duration_s / 60:.0f} min at {mean:.0%}")
    why = "nothing was measured yet" if mean is None else "neither its name nor its use is typical"
    return Classification(reason=why)


def _ruled(found: WorkloadClass, confidence: float, reason: str) -> Classification:
    return Classification(found, confidence, ClassSource.RULES, reason)
