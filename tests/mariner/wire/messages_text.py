"""Messages as text, for tests of what the codec takes."""


def ping(ping_id: str, more: str = "") -> str:
    return f'{{"msg_type":"ping_req","ping_id":{ping_id}{more}}}'


def register(event: str = "", *, payload: str = "null", register_id: str = "7") -> str:
    first = '{"type":["a"],"source_timestamp":null,"payload":null}'
    event = event or f'{{"type":["a"],"source_timestamp":null,"payload":{payload}}}'
    return (
        f'{{"msg_type":"register_req","register_id":{register_id},'
        f'"register_events":[{first},{event}]}}'
    )


def json_payload(data: str) -> str:
    return f'{{"payload_type":"json","data":{data}}}'
