"""The console: a page that shows gateways to operators and integrators, from a process of its own.

To a gateway it is a client like others, with a name, a token and their rights, and a reader of
``/metrics``. ``mariner console`` runs it; the gateway knows nothing of it.

* ``watcher`` reads from one gateway, all the time, whoever looks: ``view`` is what is known of it.
* ``type_tree`` is what a page asks for.
* ``gate`` lets in those who have a password; ``server`` serves the pages in ``page``.
* ``texts`` makes text of what events contain. It is all hostile: nothing of it may become markup,
  a script, or the key of an option of a component (NiceGUI evaluates those that begin with ``:``).

Everything is bounded (``limits``), and runs on the event loop's thread.
"""
