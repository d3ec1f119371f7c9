"""RSB (Robotics Service Bus): its events (004), its socket transport, and the bridge.

::

    event          the model: scopes, ids, meta data
    values         data of events as JSON values, by wire schema
    messages       protocol-buffer messages of schemas/rsb.proto
    codec          events as notifications, notifications in frames
    connection     one connection;   transport   the bus: server, client
    payloads       RSB events as events of the core, and back
    introspection  describes this process to RSB's tools
    bridge         between a bus and the core
"""
