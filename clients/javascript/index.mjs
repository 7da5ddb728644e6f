// A client of the gateway for Node.js 18 or later and other runtimes with `fetch`. It needs no other package.

const environment = globalThis.process?.env ?? {};
const headers = {};
if (environment.JBI_TOKEN) {
  headers.Authorization = `Bearer ${environment.JBI_TOKEN}`;
} else if (environment.JBI_CLIENT_USER) {
  const login = `${environment.JBI_CLIENT_USER}:${environment.JBI_CLIENT_PASSWORD ?? ""}`;
  headers.Authorization = `Basic ${btoa(String.fromCharCode(...new TextEncoder().encode(login)))}`;
}

// What the gateway refuses it says as problem+json (RFC 9457): `code` is the same in all languages. Other answers are those
// of a proxy.
async function asked(url, options = {}) {
  const request = { ...options, headers: { ...headers, ...options.headers } };
  const answer = await fetch(url, request).catch((error) => {
    const message = `no answer from ${url.split("/v1/")[0]} (is the gateway running?)`;
    throw new Error(message, { cause: error.cause ?? error });
  });
  if (!answer.ok) {
    const told = answer.headers.get("content-type") === "application/problem+json" ? await answer.json() : null;
    const message = told
      ? [`${told.code}: ${told.detail}`, told.hint].filter(Boolean).join(". ")
      : `status ${answer.status} ${answer.statusText} from ${url.split("/v1/")[0]}, but not from a gateway`;
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

// Server-sent events, as long as they are read. A connection that is cut, or on which nothing comes for SILENCE, is made
// again after a pause that grows from half a second to five, and the gateway is told which event came last. It repeats
// what it still has. Events that it does not have any more are told as `lost`; cause `missed` with count 0 means that the
// number is not known, as after a restart of the gateway. `again` tells of each attempt. The error is thrown when the
// first connection fails, when the gateway refuses the subscription, and after `patience` seconds without a gateway.
const SILENCE = 45_000; // the gateway says something every 15 s

export async function* subscribe(base, type, version, predicate = "", { patience = 600, start = "" } = {}) {
  let last = "";
  let opened = false;
  let tries = 0;
  let since = 0;
  const asks = new URLSearchParams(Object.entries({ predicate, start }).filter(([, value]) => value));
  const url = `${typeUrl(base, type, version)}/subscribe?${asks}`;
  while (true) {
    const cut = new AbortController();
    let timer;
    const watch = () => {
      clearTimeout(timer);
      timer = setTimeout(() => cut.abort(new Error("the gateway is silent")), SILENCE);
    };
    let problem = null;
    try {
      watch();
      const answer = await asked(url, { headers: last ? { "Last-Event-ID": last } : {}, signal: cut.signal });
      for await (const event of events(answer.body, watch)) {
        clearTimeout(timer); // the reader may take its time
        opened = true;
        tries = since = 0;
        if (event.id) last = event.id;
        yield { kind: event.event, data: JSON.parse(event.data) };
        watch();
      }
    } catch (error) {
      problem = error;
    } finally {
      clearTimeout(timer);
      cut.abort();
    }
    since ||= Date.now();
    const refused = problem?.status && problem.status < 500 && problem.status !== 429;
    if (problem && (!opened || refused || Date.now() - since > patience * 1000)) throw problem;
    const pause = Math.min(500 * 2 ** tries++, 5000) * (0.75 + Math.random() / 2);
    yield { kind: "again", data: { seconds: pause / 1000, reason: problem?.cause?.message ?? problem?.message ?? "the stream ended" } };
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
}

async function* events(body, heard) {
  const decoder = new TextDecoder();
  let text = "";
  for await (const chunk of body) {
    heard();
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

// One page; options are the other parameters of queryObjects, such as limit, after, order and since.
export async function query(base, type, version, predicate = "", options = {}) {
  const asks = new URLSearchParams(Object.entries({ predicate, ...options }).filter(([, value]) => value !== ""));
  return (await asked(`${typeUrl(base, type, version)}/query?${asks}`)).json();
}

// All objects, page by page. The pages after the first are of one archive: where several have the type, name one by `at`.
export async function* queryAll(base, type, version, predicate = "", options = {}) {
  let page;
  let after = options.after ?? "";
  do {
    page = await query(base, type, version, predicate, { ...options, after });
    yield* page.objects;
    after = page.objects.at(-1)?.place ?? "";
    if (page.partial.length) throw new Error(`some archives have not told all: ${page.partial.join("; ")}`);
    if (page.more && !after) throw new Error("there are more objects, but those of a query provider have no pages");
  } while (page.more);
}
