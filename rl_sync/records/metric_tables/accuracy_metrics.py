"""Metrics of evaluations."""

from __future__ import annotations

from rl_sync.records.metric_tables.metric import Metric

ACCURACY = (
    Metric(
        "accuracy",
        "Share of held-out completions that solve their problem.",
        normal="rises",
        alarm="its interval lies below that of an earlier evaluation: a lower learning rate; if"
        " rewards rise, the reward is gamed, or training problems are learned by heart",
    ),
    Metric("accuracy_low", "Lower end of its 95 % confidence interval."),
    Metric("accuracy_high", "Upper end."),
    Metric("accuracy_seen", "Accuracy on held-out problems whose prompts are trained on, too."),
    Metric("accuracy_unseen", "Accuracy on the others."),
    Metric("accuracy/CATEGORY", "Accuracy on the problems of one category, with interval."),
    Metric(
        "score",
        "Mean score by the reward's first term, if it is not always 0 or 1: ANLS with `anls`, mean"
        " IoU with `iou`.",
        normal="rises",
    ),
    Metric("score/CATEGORY", "Mean score on the problems of one category."),
    Metric("pass@K", "Chance that one of K completions solves a problem, with interval."),
    Metric("games_won", "Share of games of several players that the policy won.", normal="rises"),
    Metric("games_drawn", "Share that ended in a draw."),
    Metric("games_lost", "Share that it lost, by an illegal move, too.", normal="falls"),
    Metric("mean@K", "The accuracy over K completions a problem, with interval."),
    Metric("majority@K", "Accuracy of the most frequent answer of K, with interval."),
    Metric("problems", "Held-out problems with a completion that was judged.", unit="problems"),
    Metric("problems_seen", "Those whose prompts are trained on, too.", unit="problems"),
    Metric("problems_unseen", "The others.", unit="problems"),
    Metric("problems/CATEGORY", "Those of one category.", unit="problems"),
    Metric("unjudged", "Held-out completions that could not be judged.", unit="completions"),
    Metric(
        "rollouts_lost_secs",
        "Time in which an explorer's rollouts stood still for an evaluation beside them.",
        unit="s",
        normal="below 5 % of the time between two evaluations",
    ),
)

PROBE = (
    Metric("probe_accuracy", "Accuracy on a few held-out problems, between steps.", normal="rises"),
    Metric("probe_accuracy_low", "Lower end of its 95 % confidence interval."),
    Metric("probe_accuracy_high", "Upper end."),
    Metric("probe_accuracy_seen", "That on problems whose prompts are trained on, too."),
    Metric("probe_accuracy_unseen", "That on the others."),
)

SCORES = (
    Metric("score_mean", "Mean score of the held-out pairs' completions."),
    Metric("score_std", "Standard deviation of these scores."),
    Metric("score_gap", "Mean distance of the scores of chosen and rejected completions."),
)
