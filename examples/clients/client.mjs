// Publishes, subscribes and queries over the gateway, with nothing but Node.js (18 or later):
//
//   node client.mjs publish   http://127.0.0.1:8170 report 1.0 '<report><n>1</n></report>' 'a payload'
//   node client.mjs archive   http://127.0.0.1:8170 report 1.0 '<report><n>1</n></report>'   # publish, and have it kept
//   node client.mjs subscribe http://127.0.0.1:8170 report 1.0 '//n>0' 3     # ends after 3 objects; 0: never
//   node client.mjs query     http://127.0.0.1:8170 report 1.0 '//n>0'
//
// Each object is a line of JSON on stdout. With JBI_TOKEN set, it is sent as the gateway's token.

const headers = process.env.JBI_TOKEN ? { Authorization: `Bearer ${process.env.JBI_TOKEN}` } : {};

// What the gateway refuses it says as problem+json (RFC 9457): `code` is the same in all languages.
async function asked(url, options = {}) {
  const answer = await fetch(url, { ...options, headers: { ...headers, ...options.headers } });
  if (!answer.ok) {
    const problem = await answer.json();
    const message = [`${problem.code}: ${problem.detail}`, problem.hint].filter(Boolean).join(". ");
    throw Object.assign(new Error(message), { status: answer.status });
  }
  return answer;
}

const typeUrl = (base, type, version) =>
  `${base}/v1/types/${encodeURIComponent(type)}/${encodeURIComponent(version)}`;

// An object is two parts of a form: metadata, then payload. More pairs are more objects.
export async function publish(base, type, version, metadata, payload = "", persist = false) {
  const form = new FormData();
  form.append("metadata", new Blob([metadata]));
  form.append("payload", new Blob([payload]));
  // wait: the delegate has it when the answer comes; validate=false: the type needs no schema
  const url = `${typeUrl(base, type, version)}/objects?wait=20&validate=false${persist ? "&persist=true" : ""}`;
  return (await asked(url, { method: "POST", body: form })).json();
}

// Server-sent events. A connection that is cut is made again, and says which event came last: nothing is missed that the
// gateway, or an archive, still has; what is gone is told as an event `lost`.
export async function* subscribe(base, type, version, predicate = "") {
  let last = "";
  let opened = false;
  let tries = 0;
  const url = `${typeUrl(base, type, version)}/subscribe` + (predicate ? `?predicate=${encodeURIComponent(predicate)}` : "");
  while (true) {
    try {
      const answer = await asked(url, { headers: last ? { "Last-Event-ID": last } : {} });
      for await (const event of events(answer.body)) {
        opened = true;
        tries = 0;
        if (event.id) last = event.id;
        yield { kind: event.event, data: JSON.parse(event.data) };
      }
    } catch (error) {
      // refused, or nobody was ever there: said at once. A gateway that restarts is awaited, some two minutes.
      if (!opened || error.status < 500 || ++tries > 30) throw error;
    }
    await new Promise((resolve) => setTimeout(resolve, Math.min(500 * 2 ** tries, 5000)));
  }
}

async function* events(body) {
  const decoder = new TextDecoder();
  let text = "";
  for await (const chunk of body) {
    text += decoder.decode(chunk, { stream: true });
    const blocks = text.split("\n\n");
    text = blocks.pop();
    for (const block of blocks) {
      const event = { event: "message", data: "", id: "" };
      for (const line of block.split("\n")) {
        const colon = line.indexOf(":");
        if (colon > 0) event[line.slice(0, colon)] = line.slice(colon + 1).trimStart();
      }
      if (event.data) yield event;
    }
  }
}

export async function query(base, type, version, predicate = "") {
  const url = `${typeUrl(base, type, version)}/query` + (predicate ? `?predicate=${encodeURIComponent(predicate)}` : "");
  return (await asked(url)).json();
}

async function main([what, base, type, version, first = "", second = ""]) {
  const say = (value) => console.log(JSON.stringify(value));
  const publishes = what === "publish" || what === "archive";
  if (!version || (publishes && !first)) what = "";
  if (what && publishes) {
    say(await publish(base, type, version, first, second, what === "archive"));
  } else if (what === "query") {
    for (const object of (await query(base, type, version, first)).objects) say(object);
  } else if (what === "subscribe") {
    let left = Number(second);
    for await (const { kind, data } of subscribe(base, type, version, first)) {
      say({ kind, ...data }); // the first is `open`: from now on nothing is missed
      if (kind === "object" && --left === 0) process.exit(0);
    }
  } else {
    console.error("usage: node client.mjs publish|archive|subscribe|query URL TYPE VERSION ...");
    process.exit(2);
  }
}

main(process.argv.slice(2)).catch((error) => {
  console.error([error.message, error.cause?.message].filter(Boolean).join(": "));
  process.exit(1);
});
