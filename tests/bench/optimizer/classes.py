"""The classifier against the majority and rules: on workloads that it has never seen, and on later runs."""

from collections import Counter
from collections.abc import Sequence

from sklearn.metrics import f1_score

from services.optimizer.core.classify import by_rules, classify
from services.optimizer.core.model import Forest
from services.optimizer.training.fit import fit, generated_samples, samples_of
from services.optimizer.training.generator import MadeRun, generate

SEED, OTHER_SEED = 1, 2
SPLIT_DAY = 22.0
RUNS = 1500


def measure_classes() -> list[str]:
    unseen = list(generate(RUNS, OTHER_SEED, kinds=300))
    history = list(generate(2 * RUNS, OTHER_SEED + 1, kinds=100))
    early = [made for made in history if made.day <= SPLIT_DAY]
    late = [made for made in history if made.day > SPLIT_DAY]
    return [
        *_compared("workloads of another seed", fit(generated_samples(SEED), SEED)[0], unseen),
        *_compared("trained on 22 days, asked on the next 8", fit(samples_of(early), SEED)[0], late),
    ]


def _compared(name: str, forest: Forest, runs: Sequence[MadeRun]) -> list[str]:
    truth = [made.label.value for made in runs]
    model = [classify(made.workload, made.run, forest) for made in runs]
    sure = [(label, each) for label, each in zip(truth, model, strict=True) if each.confidence]
    right = sum(label == each.workload_class for label, each in sure) / len(sure)
    expected = sum(each.confidence for _, each in sure) / len(sure)
    common = Counter(truth).most_common(1)[0][0]
    scores = {
        "model": _f1(truth, [each.workload_class.value for each in model]),
        "rules": _f1(truth, _rules(runs)),
        "majority": _f1(truth, [common] * len(runs)),
    }
    told = ", ".join(f"{rival} {score:.3f}" for rival, score in scores.items())
    return [
        f"{name}, {len(runs)} runs, trained on {forest.trained_on}: {told}",
        f"  sure of {len(sure) / len(runs):.0%}: {right:.1%} right where {expected:.1%} was said",
    ]


def _rules(runs: Sequence[MadeRun]) -> list[str]:
    return [by_rules(made.workload, made.run).workload_class.value for made in runs]


def _f1(truth: list[str], found: list[str]) -> float:
    """Of the true classes; unknown is a miss of each."""
    return float(f1_score(truth, found, average="macro", labels=sorted(set(truth)), zero_division=0))
