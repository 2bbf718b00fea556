"""SORL (arXiv 2511.20718v2), in plain Python: clipped sets, bias of clipping, scale of the gradient.

Gradients are given as coefficients of ``grad log pi_t``, token by token: with the token form of a
ratio, ``grad w_t = w_t grad log pi_t`` at every level, so that ``grad J = sum_t g_t grad log pi_t``.
"""


def is_clipped(ratio, advantage, clip_low, clip_high):
    """Whether ``min(w A, clip(w) A)`` selects the constant: too high with A > 0, too low with A < 0."""
    if advantage > 0:
        return ratio > 1 + clip_high
    if advantage < 0:
        return ratio < 1 - clip_low
    return False


def surrogate(ratio, advantage, clip_low, clip_high):
    """``min(w A, clip(w, 1 - low, 1 + high) A)``."""
    near = min(max(ratio, 1 - clip_low), 1 + clip_high)
    return min(ratio * advantage, near * advantage)


def gradient_parts(ratios, advantages, shares, denominator, clip_low, clip_high):
    """Coefficients of ``grad J``, of the unclipped importance-sampling gradient and of C."""
    importance = [
        s * w * a / denominator for w, a, s in zip(ratios, advantages, shares, strict=True)
    ]
    clipped = [
        is_clipped(w, a, clip_low, clip_high) for w, a in zip(ratios, advantages, strict=True)
    ]
    bias = [g if c else 0.0 for g, c in zip(importance, clipped, strict=True)]
    objective = [0.0 if c else g for g, c in zip(importance, clipped, strict=True)]
    return objective, importance, bias


def gradient_scale(bias_norm, gradient_norm, mode, floor=1.0):
    """Factor of the gradient; 1 if nothing was clipped."""
    if bias_norm == 0:
        return 1.0
    if mode == "relative":
        return gradient_norm / (gradient_norm + bias_norm)
    if mode == "floor":
        return 1.0 / max(bias_norm, floor)
    if mode == "paper":
        return 1.0 / (bias_norm + 1e-8)
    raise ValueError(mode)
