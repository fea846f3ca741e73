"""Programs that run inside the pods: acceptance tests, fleet report, launcher, group agent and
training.
"""
