"""What findings mean: their kinds, what to do about them, and which of them explain others."""
