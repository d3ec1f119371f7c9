"""The page: a header, and a panel for each thing to look at.

A panel is a class of a module of its own. It makes its elements when it is created, and brings
them up to date when ``refresh`` is called, which is once a second while it is the one that is
looked at. Only ``parts`` says how things look.

Text of events gets into elements as text (labels, cells of tables), and into options of components
as a value, never as a key.
"""

from mariner_console.page.frame import install

__all__ = ["install"]
