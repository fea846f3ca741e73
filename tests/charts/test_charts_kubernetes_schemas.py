"""kubeconform: what the charts render has no field that Kubernetes or JobSet would drop or refuse.

One Helm is enough here: test_charts_render.py shows that the other one renders the same objects.
VALUES_KUBERNETES names further versions of Kubernetes whose schemas the objects must fit.
"""

from tests.helpers.rendering import each_scenario, invalid, rendered


@each_scenario
def test_rendered_objects_fit_their_schemas(scenario):
    assert invalid(rendered("helm", scenario)) == ""
