"""Pages in HTML, each one self-contained file that asks nothing of the network."""

from typing import Any

from syncguard._version import __version__

__all__ = ["rendered"]


def rendered(template: str, **values: Any) -> str:
    """A page of a template, which is given the version too.

    Args:
        template: A file in this folder.
        values: What it asks for; one that is missing is an error.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("syncguard", "reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(version=__version__, **values)
