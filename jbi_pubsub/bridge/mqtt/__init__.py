"""A broker of MQTT 5 as a platform (OASIS, MQTT Version 5.0); the one place that knows paho.

Rules:
- To the broker an object is a message on the topic PREFIX/TYPE: its payload is the payload, metadata and what the
  platform says of it are user properties `jbi-...`. Metadata beyond METADATA_MOST go in an envelope, with the payload:
  the object's bytes as they are on our own wire, content type ENVELOPE.
- From the broker a message is an object of a registration of the bridge's own, as MQTT knows neither: its id is made
  from name and type, so that of several bridges one relays it; numbers are times (microseconds), so that they go up
  over restarts, and from one bridge to the next. Metadata are those in the message, else made of topic, content type
  and user properties.
- QoS 1 both ways: what is not acknowledged is sent again. We acknowledge a message when the other side has taken it, in
  the order in which they came. The broker keeps our session while we are away.
- One message is one object, however many of our filters it matches: of the copies that a broker sends, each with its
  subscription identifier, that of the first filter counts.
- A message that can't be an object, or that paho can't read, is acknowledged, or it would come again for ever; it is
  lost, and counted by cause.
- What we have published does not come back (No Local, section 3.8.3.1); what another bridge has is known by `jbi-via`.
- There are no subscriptions, queries, or losses to be told over there.
"""

from .message import ENVELOPE, METADATA_MOST
from .platform import MqttPlatform
from .side import MqttSide, MqttTopic, check_side

__all__ = ["ENVELOPE", "METADATA_MOST", "MqttPlatform", "MqttSide", "MqttTopic", "check_side"]
