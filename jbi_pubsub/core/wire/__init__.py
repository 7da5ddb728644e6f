"""The wire: `ref` (leased proxies as data), `control` (restricted rpyc), `stream` (framed data plane), `tls`.

Only `control` knows rpyc. Importing this package loads nothing but the plain values.
"""

from .ref import PROTOCOL, ServiceRef

__all__ = ["PROTOCOL", "ServiceRef"]
