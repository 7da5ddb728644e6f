#!/usr/bin/env node
// Publishes, subscribes and queries over the gateway, from a shell; `node client.mjs` in this folder is the same:
//
//   npx jbi-pubsub publish   http://127.0.0.1:8170 report 1.0 '<report><n>1</n></report>' 'a payload'
//   npx jbi-pubsub archive   http://127.0.0.1:8170 report 1.0 '<report><n>1</n></report>'   # publish, and have it kept
//   npx jbi-pubsub subscribe http://127.0.0.1:8170 report 1.0 '//n>0' 3     # ends after 3 objects; 0: never
//   npx jbi-pubsub query     http://127.0.0.1:8170 report 1.0 '//n>0'
//
// Each object is a line of JSON on stdout. JBI_TOKEN is the gateway's token, JBI_CLIENT_USER and JBI_CLIENT_PASSWORD are a
// user's name and password.

import { publish, queryAll, subscribe } from "./index.mjs";

async function main([what, base, type, version, first = "", second = ""]) {
  const say = (value) => console.log(JSON.stringify(value));
  const publishes = what === "publish" || what === "archive";
  if (!version || (publishes && !first)) what = "";
  if (what && publishes) {
    say(await publish(base, type, version, first, second, what === "archive"));
  } else if (what === "query") {
    for await (const object of queryAll(base, type, version, first)) say(object);
  } else if (what === "subscribe") {
    let left = Number(second);
    for await (const { kind, data } of subscribe(base, type, version, first)) {
      say({ kind, ...data }); // the first is `open`: from now on nothing is missed
      if (kind === "object" && --left === 0) process.exit(0);
    }
  } else {
    console.error("usage: jbi-pubsub publish|archive|subscribe|query URL TYPE VERSION ...");
    process.exit(2);
  }
}

main(process.argv.slice(2)).catch((error) => {
  console.error([error.message, error.cause?.message].filter(Boolean).join(": "));
  process.exit(1);
});
