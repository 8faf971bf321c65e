"""The predicted peak memory against what was asked for and against the last run, run by run in time."""

from services.optimizer.core.predict import LEVEL, History, outcome_of, predict
from services.optimizer.training.generator import generate

RUNS = 4000


def measure_needs() -> list[str]:
    lines = []
    for name, seed, since in (("all runs", 3, 0.0), ("last quarter of the time", 3, 22.5)):
        history, last = History(), dict[str, float]()
        losses = {"predicted": 0.0, "as requested": 0.0, "last run": 0.0}
        covered, counted = dict.fromkeys(losses, 0), 0
        for made in generate(RUNS, seed, kinds=80):
            key, truth = made.workload.signature.key, made.run.memory_mib or 0.0
            prediction = predict(made.workload, history, {}).memory_mib
            if prediction is not None and key in last and made.day >= since:
                guesses = {
                    "predicted": prediction.high,
                    "as requested": made.requested_mib,
                    "last run": last[key],
                }
                counted += 1
                for rival, guess in guesses.items():
                    losses[rival] += _pinball(truth, guess)
                    covered[rival] += truth <= guess
            history.add(made.workload.signature, outcome_of(made.run, ended=True))
            last[key] = truth
        parts = [
            f"{rival} {losses[rival] / counted:.0f} MiB, {covered[rival] / counted:.1%}" for rival in losses
        ]
        lines.append(f"{name}, {counted} runs: pinball loss at {LEVEL:.0%} and coverage: {'; '.join(parts)}")
    return lines


def _pinball(truth: float, guess: float) -> float:
    return max(LEVEL * (truth - guess), (LEVEL - 1) * (truth - guess))
