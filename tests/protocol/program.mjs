// Runs tests/vectors, and then a client as an application would: node program.mjs PORT
//
// The gateway of tests/vectors/gateway.yaml is at that port of 127.0.0.1, and was just started.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { Client, Connection, encodeFrame, FrameReader, parse, RefusedError, stringify } from "./client.mjs";

const HOST = "127.0.0.1";
const PORT = Number(process.argv[2]);
const PLACEHOLDER = /\$(?:session|time|history)\d+/g;

async function load(name) {
  return parse(await readFile(new URL(`../vectors/${name}`, import.meta.url), "utf8"));
}

/** The same JSON value; 1 and 1.0 are. */
function same(one, other) {
  assert.equal(stringify(one), stringify(other));
}

// --- without a gateway ----------------------------------------------------------------------

function readFrames(chunks) {
  const reader = new FrameReader();
  return chunks.flatMap((chunk) => [...reader.read(chunk)]);
}

async function framing() {
  const { encode, decode, refuse } = await load("framing.json");
  for (const { message, bytes } of encode) assert.equal(encodeFrame(message).toString("hex"), bytes);
  for (const { bytes, messages } of decode) {
    const data = Buffer.from(bytes, "hex");
    assert.deepEqual(readFrames([data]), messages);
    assert.deepEqual(readFrames([...data].map((byte) => Buffer.of(byte))), messages);
  }
  for (const { name, bytes } of refuse) {
    const read = () => readFrames([Buffer.from(bytes, "hex")]).map(parse).map(checkObject);
    assert.throws(read, Error, name);
  }
  console.log(`framing: ${encode.length} encoded, ${decode.length} decoded, ${refuse.length} refused`);
}

function checkObject(message) {
  if (typeof message?.msg_type !== "string") throw new Error("no message");
}

async function messages() {
  const vectors = await load("messages.json");
  for (const { message, integers } of vectors) {
    const value = parse(message);
    same(parse(stringify(value)), value);
    for (const [pointer, digits] of Object.entries(integers)) {
      const found = pointer.split("/").slice(1).reduce((inner, key) => inner[key], value);
      assert.equal(found, BigInt(digits));
    }
  }
  console.log(`messages: ${vectors.length}`);
}

// --- against a gateway ----------------------------------------------------------------------

/** A connection of which the next message, or its end, can be waited for. */
class Peer {
  static async connect() {
    const peer = new Peer();
    peer.connection = await Connection.open(HOST, PORT);
    peer.received = peer.connection.messages();
    return peer;
  }

  async receive() {
    const { value, done } = await this.received.next();
    assert.ok(!done, "the gateway closed the connection");
    return value;
  }

  async closedByGateway() {
    const { value, done } = await this.received.next();
    assert.ok(done, `expected the end, got ${stringify(value ?? null)}`);
    this.connection.close();
  }

  /** Sends no more: nothing else comes than pings, and the end. */
  async end() {
    this.connection.end();
    for await (const message of this.received) assert.equal(message.msg_type, "ping_req");
  }
}

const INIT = {
  msg_type: "init_req",
  client_name: "app",
  client_token: "secret",
  subscriptions: [],
  server_id: null,
  persisted: false,
};

async function refusals() {
  const vectors = await load("refusals.json");
  for (const { name, client, message, bytes, answer, closes } of vectors) {
    const peer = await Peer.connect();
    if (client !== null) {
      peer.connection.send({ ...INIT, client_name: client });
      assert.equal((await peer.receive()).success, true);
    }
    peer.connection.sendBytes(bytes === undefined ? encodeFrame(message) : Buffer.from(bytes, "hex"));
    if (answer !== null) assert.deepEqual(await peer.receive(), answer, name);
    if (closes) await peer.closedByGateway();
    else await peer.end();
  }
  console.log(`refusals: ${vectors.length}`);
}

/** Compares a message with an expected one; what it says for the first time becomes known. */
function match(expected, actual, known) {
  if (typeof expected === "string" && expected.startsWith("$") && !known.has(expected)) {
    known.set(expected, actual);
  } else if (typeof expected === "string" && expected.endsWith("…")) {
    assert.ok(actual.startsWith(fill(expected.slice(0, -1), known)), actual);
  } else if (expected !== null && typeof expected === "object" && !Array.isArray(expected)) {
    assert.deepEqual(Object.keys(actual).sort(), Object.keys(expected).sort());
    for (const key of Object.keys(expected)) match(expected[key], actual[key], known);
  } else if (Array.isArray(expected)) {
    assert.equal(actual.length, expected.length);
    expected.forEach((element, index) => match(element, actual[index], known));
  } else {
    assert.deepEqual(actual, fill(expected, known));
  }
}

/** A message with what is known in the place of placeholders. */
function fill(message, known) {
  if (known.has(message)) return known.get(message);
  if (typeof message === "string") return message.replace(PLACEHOLDER, (name) => known.get(name));
  if (Array.isArray(message)) return message.map((element) => fill(element, known));
  if (message === null || typeof message !== "object") return message;
  return Object.fromEntries(Object.entries(message).map(([key, field]) => [key, fill(field, known)]));
}

async function runSteps(steps, peers) {
  const known = new Map();
  for (const { peer: letter, send, receive, closes, stage } of steps) {
    if (stage !== undefined) return false; // the rest needs somebody at the gateway
    if (!peers.has(letter)) peers.set(letter, await Peer.connect());
    const peer = peers.get(letter);
    if (send !== undefined) peer.connection.send(fill(send, known));
    else if (receive !== undefined) match(receive, await peer.receive(), known);
    else {
      if (closes === "gateway") await peer.closedByGateway();
      peer.connection.close();
      peers.delete(letter);
    }
  }
  return true;
}

async function dialogues() {
  const vectors = await load("dialogues.json");
  let whole = 0;
  for (const { name, steps } of vectors) {
    const peers = new Map();
    try {
      if (await runSteps(steps, peers)) {
        whole++;
        for (const peer of peers.values()) await peer.end();
      }
    } catch (error) {
      throw new Error(`${name}: ${error.message}`, { cause: error });
    }
    for (const peer of peers.values()) peer.connection.close();
  }
  console.log(`dialogues: ${whole} whole, ${vectors.length - whole} up to what happens to the gateway`);
}

// --- as an application ----------------------------------------------------------------------

const event = (type, data) => ({
  type,
  source_timestamp: null,
  payload: { payload_type: "json", data },
});

async function application() {
  const me = { client_name: "app", client_token: "secret" };
  await assert.rejects(Client.connect(HOST, PORT, { ...me, client_token: "guess" }), RefusedError);

  const wanted = { subscriptions: [["node", "*"]], persisted: true };
  const client = await Client.connect(HOST, PORT, { ...me, ...wanted });
  assert.equal(client.status, "OPERATIONAL");
  assert.ok(client.extensions.includes("request_key"));
  await client.ping();

  const values = [2n ** 53n + 1n, 2n ** 63n - 1n, -(2n ** 63n), 1.5, "žižula"];
  const events = values.map((value, index) => event(["node", `${index % 2}`], value));
  const key = { request_key: "node 1" };
  const stored = await client.register(events, key);
  assert.deepEqual(stored.map(({ payload }) => payload.data), values);
  for await (const notified of client.notifications()) {
    assert.deepEqual(notified.events, stored);
    break;
  }
  assert.deepEqual(await client.register(events, key), stored); // the same, and not again
  await assert.rejects(client.register([event(["node", "*"], 1n)]), RefusedError);

  const all = { query_type: "timeseries", order: "ASCENDING", order_by: "TIMESTAMP" };
  const found = [];
  for await (const page of client.pages({ ...all, event_types: [["node", "?"]], max_results: 2 })) {
    found.push(page);
  }
  assert.deepEqual(found.map((page) => page.length), [2, 2, 1]);
  assert.deepEqual(found.flat(), stored);

  const many = Array.from({ length: 64 }, (_, i) => client.register([event(["many"], BigInt(i))]));
  const sessions = (await Promise.all(many)).map(([{ id }]) => id.session);
  assert.ok(sessions.every((session, i) => i === 0 || session > sessions[i - 1]));
  client.close();
  await assert.rejects(client.ping());
  console.log(`application: ${stored.length} events in ${found.length} pages, ${many.length} in flight`);
}

for (const part of [framing, messages, refusals, dialogues, application]) await part();
