"""Frozen lake: walk from S over F to G and avoid the holes H. The reward is 1 at G, else 0."""

LAKE = "".join(["SFFF", "FHFH", "FFFH", "HFFG"])
SIDE = 4
MOVES = {"left": (0, -1), "down": (1, 0), "right": (0, 1), "up": (-1, 0)}
START, SHORTEST = 0, 6  # moves of the shortest path


def step(place: int, action: int) -> tuple[int, int, bool]:
    """Next place, reward, and whether the walk is over."""
    down, right = list(MOVES.values())[action]
    row = min(max(place // SIDE + down, 0), SIDE - 1)
    column = min(max(place % SIDE + right, 0), SIDE - 1)
    after = row * SIDE + column
    return after, int(LAKE[after] == "G"), LAKE[after] in "GH"


def best_path(table: list[list[float]]) -> list[str] | None:
    """Moves to the goal by the best actions in `table`, a value per place and action. None if they miss the goal."""
    place, moves = START, []
    while len(moves) < SIDE * SIDE:
        action = max(range(len(MOVES)), key=table[place].__getitem__)
        moves.append(list(MOVES)[action])
        place, reward, over = step(place, action)
        if over:
            return moves if reward else None
    return None
