"""RSB (Robotics Service Bus): its events (004), its socket transport, and the bridge.

::

    event          the model: scopes, ids, meta data
    codec          events as notifications (schemas/rsb.proto), notifications in frames
    transport      connections; the bus: server, client
    payloads       data of events as JSON values; RSB events as events of the core, and back
    introspection  describes this process to RSB's tools
    bridge         between a bus and the core
"""
