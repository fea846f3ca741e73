"""Values of the chart job-group for a Kubernetes manifest of another launcher, for `jobgen from`.

A container's command is carried, and never read as shell: it becomes `run` of a task, in which
torchrun is the launcher. Every part of the object ends in a value, in podTemplate, or in a note.
"""
