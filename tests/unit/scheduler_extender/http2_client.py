"""A client of HTTP/2 that is not ours: h2 decides what is right. Does no I/O."""

from collections import defaultdict

import h2.config
import h2.connection
import h2.events

from tests.unit.scheduler_extender.http2_lines import Answer


class Http2Client:
    """`left` is whether the server said farewell."""

    def __init__(self) -> None:
        self.answers: defaultdict[int, Answer] = defaultdict(Answer)
        self.left = False
        self._connection = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
        self._connection.initiate_connection()
        self._unsent: dict[int, bytes] = {}

    @property
    def streams_allowed(self) -> int:
        return int(self._connection.remote_settings.max_concurrent_streams)

    def ask(self, path: str, body: bytes) -> int:
        """Return the stream on which it is answered."""
        stream = self._connection.get_next_available_stream_id()
        headers = [(":method", "POST"), (":scheme", "https"), (":authority", "x"), (":path", path)]
        headers.append(("content-length", str(len(body))))
        self._connection.send_headers(stream, headers, end_stream=not body)
        self._unsent[stream] = body
        return stream

    def say(self) -> bytes:
        """As much as the server has room for."""
        for stream, unsent in self._unsent.items():
            rest = unsent
            while rest:
                window = self._connection.local_flow_control_window(stream)
                part = rest[: min(window, self._connection.max_outbound_frame_size)]
                if not part:
                    break
                rest = rest[len(part) :]
                self._connection.send_data(stream, part, end_stream=not rest)
            self._unsent[stream] = rest
        return self._connection.data_to_send()

    def hear(self, data: bytes) -> None:
        for event in self._connection.receive_data(data):
            match event:
                case h2.events.ResponseReceived(stream_id=int(stream), headers=list(headers)):
                    pairs = {bytes(name).decode(): bytes(value).decode() for name, value in headers}
                    self.answers[stream].headers = pairs
                case h2.events.DataReceived(stream_id=int(stream), data=bytes(part)):
                    self.answers[stream].body += part
                    self._connection.acknowledge_received_data(event.flow_controlled_length or 0, stream)
                case h2.events.StreamEnded(stream_id=int(stream)):
                    self.answers[stream].is_whole = True
                    del self._unsent[stream]
                case h2.events.ConnectionTerminated():
                    self.left = True
