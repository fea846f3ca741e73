"""Values for a Kubernetes manifest of another launcher, for `jobgen from`.

A container's command is carried, and never read as shell. One that is nothing but torchrun or Python with a program
becomes program.args of ddp-run. Any other, such as a script, becomes `run` of a task of job-group, in which torchrun is
the launcher. Every part of the object ends in a value, in podTemplate, or in a note.
"""
