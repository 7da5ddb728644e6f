"""name -> adapter class, imported on demand (each needs its own client library)."""
import importlib

REGISTRY = {
    "jbi": ("jbi", "Jbi"),
    "jbi-lean": ("jbi", "JbiLean"),
    "activemq-xpath": ("activemq", "ActiveMQXPath"),
    "activemq-sql": ("activemq", "ActiveMQSql"),
    "activemq-xpath-stomppy": ("activemq", "ActiveMQXPathStompPy"),
    "activemq-xpath-durable": ("activemq", "ActiveMQXPathDurable"),
    "rabbitmq-jms": ("rabbitmq", "RabbitJms"),
    "rabbitmq-ack": ("rabbitmq", "RabbitHeadersAck"),
    "mosquitto-qos1": ("mosquitto", "MosquittoQos1"),
    "rabbitmq": ("rabbitmq", "RabbitHeaders"),
    "mosquitto": ("mosquitto", "Mosquitto"),
    "nats": ("nats_", "Nats"),
    "nats-cells": ("nats_", "NatsCells"),
    "nats-lean": ("nats_", "NatsLean"),
    "nats-lean-cells": ("nats_", "NatsLeanCells"),
    "redis": ("redis_", "Redis"),
    "pyzmq": ("zmq_", "Zmq"),
    "zenoh": ("zenoh_", "Zenoh"),
    "zenoh-cells": ("zenoh_", "ZenohCells"),
    "cyclonedds": ("cyclone", "Cyclone"),
    "cyclonedds-topicfilter": ("cyclone", "CycloneTopicFilter"),
    "direct-lxml": ("direct", "DirectLxml"),
    "direct-index": ("direct", "DirectIndex"),
}


def get(name):
    mod, cls = REGISTRY[name]
    return getattr(importlib.import_module(f"adapters.{mod}"), cls)()
