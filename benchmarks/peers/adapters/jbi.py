"""jbi-pubsub: a lookup service and one delegate, a PublisherAdapterLight, one SubscriberAdapter a subscriber process.

Every object is validated against the strict schema of its style, by publisher and delegate. `jbi-lean` switches that
off; invariants are always checked. The subscribers of a process share its connections."""
import json
import subprocess
import sys
import time

from workload import schema

from .base import Adapter, Publisher

class Jbi(Adapter):
    name = "jbi"
    validate = True

    def start(self, tmpdir):
        jbi = [sys.executable, "-m", "jbi_pubsub", "--no-multicast"]
        lookup = subprocess.Popen([*jbi, "lookup", "--port", "0", "--json"], stdout=subprocess.PIPE, text=True)
        self.locator = json.loads(lookup.stdout.readline())["address"]
        pad = subprocess.Popen([*jbi, "--locator", self.locator, "pad", "bench", "here", "--json"], stdout=subprocess.PIPE, text=True)
        pad.stdout.readline()
        self.procs = [lookup, pad]
        return [p.pid for p in self.procs]

    def config(self):
        from jbi_pubsub import Config
        from jbi_pubsub.core.config import LookupSection, QueueSection
        return Config(lookup=LookupSection(locators=(self.locator,), multicast=False), queue=QueueSection(publish_seconds=60))

    def make_publisher(self):
        ad = self
        from jbi_pubsub import PublisherAdapterLight

        class P(Publisher):
            def __init__(s):
                s.pal = PublisherAdapterLight(ad.config())
                s.delegate = s.pal.connect_to_delegate("bench", "here")
                s.reg = None

            def prepare(s, obj):
                if s.reg is None:
                    s.reg = s.pal.register_publisher(s.delegate, schema(ad.style), obj.metadata, validate=ad.validate)
                    standing = s.pal.wait_for_subscribers(s.reg, ad.N, 60)
                    if standing < ad.N:
                        raise RuntimeError(f"{standing} of {ad.N} subscriptions stand")
                return obj

            def publish(s, obj):
                s.pal.publish(s.reg, obj.metadata, obj.payload)

            def close(s):
                s.pal.close()
        return P()

    def run_subscribers(self, predicates, rec, ready):
        from jbi_pubsub import SubscriberAdapter

        class L:
            def __init__(s, sub):
                s.sub = sub

            def arrived(s, uid, obj):
                rec.deliver(s.sub, obj.metadata, obj.payload)

            def lost(s, uid, notice):
                print("lost", notice, file=sys.stderr)

        with SubscriberAdapter(self.config()) as sa:
            for p in predicates:
                sa.register_subscriber(type_name="mil.af.rl.jbi.Intel_Imagery", predicate=p.xpath, listener=L(p.sub))
            ready()
            while not rec.stopped():
                time.sleep(0.05)


class JbiLean(Jbi):
    name = "jbi-lean"
    validate = False
