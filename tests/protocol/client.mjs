// A Mariner client in Node.js (18 or newer), without packages, written against docs/protocol.md.
//
// Integers of messages are BigInt: ids and payloads have 64 bits, a Number is exact up to 2^53 only.

import net from "node:net";
import tls from "node:tls";

// --- JSON (Numbers) -------------------------------------------------------------------------

const TOKEN =
  /[ \t\n\r]*([{}[\],:]|"[^"\\\x00-\x1f]*(?:\\.[^"\\\x00-\x1f]*)*"|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null)[ \t\n\r]*/y;
const INTEGER = /^-?\d+$/;

/** Decodes JSON; integers become BigInt, objects have no prototype. Throws a SyntaxError. */
export function parse(text) {
  let at = 0;

  function take() {
    TOKEN.lastIndex = at;
    const found = TOKEN.exec(text);
    if (found === null) throw new SyntaxError(`no JSON at character ${at}`);
    at = TOKEN.lastIndex;
    return found[1];
  }

  function expect(...tokens) {
    const token = take();
    if (!tokens.includes(token)) throw new SyntaxError(`no JSON before character ${at}`);
    return token;
  }

  function isEmpty(end) {
    const before = at;
    if (take() === end) return true;
    at = before;
    return false;
  }

  function value() {
    const token = take();
    if (token === "[") {
      const array = [];
      if (isEmpty("]")) return array;
      do array.push(value());
      while (expect(",", "]") === ",");
      return array;
    }
    if (token === "{") {
      const object = Object.create(null);
      if (isEmpty("}")) return object;
      do {
        const key = take();
        if (key[0] !== '"') throw new SyntaxError(`no JSON before character ${at}`);
        expect(":");
        object[JSON.parse(key)] = value();
      } while (expect(",", "}") === ",");
      return object;
    }
    return INTEGER.test(token) ? BigInt(token) : JSON.parse(token);
  }

  const parsed = value();
  if (at !== text.length) throw new SyntaxError(`more than JSON at character ${at}`);
  return parsed;
}

/** Encodes a value as JSON: a BigInt, which JSON.stringify refuses, as its digits. */
export function stringify(value) {
  if (typeof value === "bigint") return value.toString();
  if (typeof value === "number" && !Number.isFinite(value)) throw new TypeError(`no JSON: ${value}`);
  if (Array.isArray(value)) return `[${value.map(stringify).join(",")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const fields = Object.entries(value).filter(([, field]) => field !== undefined);
  return `{${fields.map(([key, field]) => `${JSON.stringify(key)}:${stringify(field)}`).join(",")}}`;
}

// --- framing --------------------------------------------------------------------------------

const MAX_MESSAGE_BYTES = 256 << 20;
const UTF8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** The frame of a message: the number of bytes of its length, the length, the message. */
export function encodeFrame(text) {
  const message = Buffer.from(text, "utf8");
  const digits = message.length.toString(16);
  const length = Buffer.from(digits.padStart(digits.length + (digits.length % 2), "0"), "hex");
  return Buffer.concat([Buffer.of(length.length), length, message]);
}

/** Cuts what comes into the texts of messages. */
export class FrameReader {
  #chunks = [];
  #bytes = 0;

  /** Takes bytes in, and yields the messages that are whole. Throws if they are no frames. */
  *read(chunk) {
    this.#chunks.push(chunk);
    this.#bytes += chunk.length;
    for (let bounds; (bounds = this.#next()) !== null; ) {
      const [begin, end] = bounds;
      const data = this.#joined(end);
      this.#chunks = [data.subarray(end)];
      this.#bytes = data.length - end;
      yield UTF8.decode(data.subarray(begin, end));
    }
  }

  /** Where the next message begins and ends; null: it is not whole. */
  #next() {
    if (this.#bytes === 0) return null;
    const m = this.#joined(1)[0];
    if (m === 0) throw new Error("a frame without length");
    if (this.#bytes < 1 + m) return null;
    const k = this.#joined(1 + m).subarray(1, 1 + m).reduce((sum, byte) => sum * 256 + byte, 0);
    if (k === 0) throw new Error("a frame without message");
    if (k > MAX_MESSAGE_BYTES) throw new Error(`a message of ${k} bytes`);
    return this.#bytes < 1 + m + k ? null : [1 + m, 1 + m + k];
  }

  /** The chunks as far as this position in one, which are joined only once they are all there. */
  #joined(position) {
    if (this.#chunks[0].length < position) this.#chunks = [Buffer.concat(this.#chunks)];
    return this.#chunks[0];
  }
}

// --- connection -----------------------------------------------------------------------------

/** Frames over a socket: send(message), and received messages by an async iterator. */
export class Connection {
  #socket;

  static open(host, port, tlsOptions = null) {
    return new Promise((resolve, reject) => {
      const socket = tlsOptions
        ? tls.connect({ host, port, ...tlsOptions }, () => resolve(new Connection(socket)))
        : net.connect({ host, port, allowHalfOpen: true }, () => resolve(new Connection(socket)));
      socket.once("error", reject);
    });
  }

  constructor(socket) {
    this.#socket = socket;
    socket.setNoDelay(true);
    socket.on("error", () => {}); // the iterator throws it
  }

  send(message) {
    this.sendBytes(encodeFrame(stringify(message)));
  }

  sendBytes(bytes) {
    this.#socket.write(bytes);
  }

  /** Messages until the gateway closes the connection; other failures are thrown. */
  async *messages() {
    const reader = new FrameReader();
    for await (const chunk of this.#socket) {
      for (const text of reader.read(chunk)) yield parse(text);
    }
  }

  /** Sends no more; what the gateway has to say still comes. */
  end() {
    this.#socket.end();
  }

  close() {
    this.#socket.destroy();
  }
}

// --- client ---------------------------------------------------------------------------------

const PING_PERIOD_MS = 30_000;

/** The gateway said no: to the client (`init_res`), or to a registration (`register_res`). */
export class RefusedError extends Error {
  constructor(message, outcome = undefined) {
    super(message);
    this.outcome = outcome;
  }
}

/** A client of a gateway: `await Client.connect(…)`. */
export class Client {
  #connection;
  #pending = new Map(); // requests that wait for their answer
  #lastId = 0n;
  #notifications = [];
  #wake = () => {};
  #silentPeriods = 0;
  #timer;
  #closed = null;

  /**
   * Connects, and introduces the client. `init` has the fields of `init_req` that are not to be
   * none: client_name, client_token, subscriptions, persisted, …
   */
  static async connect(host, port, init, tlsOptions = null) {
    const connection = await Connection.open(host, port, tlsOptions);
    const messages = connection.messages();
    const none = { client_token: null, subscriptions: [], server_id: null, persisted: false };
    connection.send({ msg_type: "init_req", ...none, ...init });
    const { value: answer } = await messages.next();
    if (!answer?.success) {
      connection.close();
      throw answer ? new RefusedError(answer.error) : new Error("the gateway closed the connection");
    }
    return new Client(connection, messages, answer);
  }

  constructor(connection, messages, { status, extensions = [], histories = [] }) {
    this.#connection = connection;
    this.status = status;
    this.extensions = extensions;
    this.histories = histories;
    this.#timer = setInterval(() => this.#checkSilence(), PING_PERIOD_MS).unref();
    this.#run(messages);
  }

  /** Registers events in one session; resolves to them as they are stored. */
  async register(events, keys = {}) {
    const register = { msg_type: "register_req", register_events: events, ...keys };
    const answer = await this.#request("register", register);
    if (!answer.success) throw new RefusedError(answer.error ?? "refused", answer.outcome);
    return answer.events;
  }

  /** One page of a query: `{events, more_follows}`. */
  query(params) {
    return this.#request("query", { msg_type: "query_req", ...params });
  }

  /** All events of a query, in pages. */
  async *pages(params) {
    for (let last; ; ) {
      const page = await this.query(last ? { ...params, last_event_id: last.id } : params);
      if (page.events.length > 0) yield page.events;
      if (!page.more_follows || page.events.length === 0) return;
      last = page.events.at(-1);
    }
  }

  async ping() {
    await this.#request("ping", { msg_type: "ping_req" });
  }

  /**
   * What the gateway tells by itself: `events`, `status`, `up_to_date`, `gap`, `cursor_lost`. It is
   * kept until it is taken here, however much it is.
   */
  async *notifications() {
    for (;;) {
      while (this.#notifications.length > 0) yield this.#notifications.shift();
      if (this.#closed) throw this.#closed;
      await new Promise((resolve) => (this.#wake = resolve));
    }
  }

  /** With a cursor: `ids` are dealt with, of each server the last one. */
  acknowledge(ids, more = {}) {
    this.#connection.send({ msg_type: "events_ack", ids, ...more });
  }

  close() {
    this.#end(new Error("closed"));
  }

  #request(kind, message) {
    if (this.#closed) return Promise.reject(this.#closed);
    const id = ++this.#lastId;
    return new Promise((resolve, reject) => {
      this.#pending.set(`${kind} ${id}`, { resolve, reject });
      this.#connection.send({ ...message, [`${kind}_id`]: id });
    });
  }

  async #run(messages) {
    try {
      for await (const message of messages) this.#take(message);
      this.#end(new Error("the gateway closed the connection"));
    } catch (error) {
      this.#end(error);
    }
  }

  #take(message) {
    this.#silentPeriods = 0;
    const answered = /^(register|query|ping)_res$/.exec(message.msg_type);
    if (answered) {
      const request = `${answered[1]} ${message[`${answered[1]}_id`]}`;
      this.#pending.get(request)?.resolve(message);
      this.#pending.delete(request);
    } else if (message.msg_type === "ping_req") {
      this.#connection.send({ msg_type: "ping_res", ping_id: message.ping_id });
    } else {
      if (message.msg_type === "status") this.status = message.status;
      this.#notifications.push(message);
      this.#wake();
    }
  }

  #checkSilence() {
    if (this.#silentPeriods === 2) this.#end(new Error("the gateway does not answer"));
    else if (++this.#silentPeriods === 2) this.ping().catch(() => {});
  }

  #end(error) {
    if (this.#closed) return;
    this.#closed = error;
    clearInterval(this.#timer);
    this.#connection.close();
    for (const { reject } of this.#pending.values()) reject(error);
    this.#pending.clear();
    this.#wake();
  }
}
