"""Is this node good? Checks, their verdict, and the report."""
