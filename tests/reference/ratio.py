"""Log ratio of a token, of its turn or of its row, in plain Python; rows are lists of lists."""


def log_ratio(logprob, old_logprob, turn_of_token, level):
    """Value of ``log w``: the token's own, or the mean over the sampled tokens of its unit.

    Positions with ``turn_of_token < 0`` enter no mean and get 0. A turn is known by its index, in
    whichever rows its tokens lie; the unit of "sequence" is the row.
    """
    places = [
        (i, j) for i, row in enumerate(turn_of_token) for j, turn in enumerate(row) if turn >= 0
    ]

    def unit(i, j):
        return {"token": (i, j), "turn": turn_of_token[i][j], "sequence": i}[level]

    out = [[0.0] * len(row) for row in logprob]
    for i, j in places:
        mates = [(k, m) for k, m in places if unit(k, m) == unit(i, j)]
        out[i][j] = sum(logprob[k][m] - old_logprob[k][m] for k, m in mates) / len(mates)
    return out
