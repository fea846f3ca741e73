"""GPU types with node labels in the chart job-group, generated from its files."""

ACCELERATORS = frozenset(
    {
        "A100",
        "A100-80GB",
        "B200",
        "H100",
        "H200",
        "L4",
        "L40S",
        "T4",
        "V100",
    }
)
