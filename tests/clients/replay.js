// A client of luced in another language, with a MessagePack of its own: replays the vectors, then talks to a daemon.
//
//     node replay.js wire.json [SOCKET]
//
// Every vector must unpack to its message and pack to its bytes again. With a socket it says hello, subscribes, asks,
// and cancels; and prints what the daemon said as JSON. Any difference throws.
"use strict";
const assert = require("assert");
const fs = require("fs");
const net = require("net");

// [value, position after it]; undefined: the bytes end before it does.
function unpack(data, at) {
  if (at >= data.length) return undefined;
  const first = data[at++];
  const length = (n) => (at + n > data.length ? NaN : data.readUIntBE((at += n) - n, n));
  const bytes = (n) => (at + n <= data.length ? data.subarray(at, (at += n)) : undefined);
  const items = (n) => {
    const found = [];
    for (let i = 0; i < n || n !== n; i++) {
      const item = unpack(data, at);
      if (item === undefined) return undefined;
      found.push(item[0]);
      at = item[1];
    }
    return found;
  };
  const map = (n) => {
    const found = items(2 * n);
    return found && Object.fromEntries(Array.from({ length: n }, (_, i) => [found[2 * i], found[2 * i + 1]]));
  };
  const string = (n) => { const found = bytes(n); return found && found.toString("utf8"); };
  const number = (n, read) => { const found = bytes(n); return found && read(found); };
  const value = (() => {
    if (first < 0x80) return first;
    if (first < 0x90) return map(first & 15);
    if (first < 0xa0) return items(first & 15);
    if (first < 0xc0) return string(first & 31);
    if (first >= 0xe0) return first - 0x100;
    switch (first) {
      case 0xc0: return null;
      case 0xc2: return false;
      case 0xc3: return true;
      case 0xc4: case 0xc5: case 0xc6: return bytes(length(1 << (first - 0xc4)));
      case 0xca: return number(4, (b) => b.readFloatBE());
      case 0xcb: return number(8, (b) => new Float(b.readDoubleBE()));
      case 0xcc: case 0xcd: case 0xce: return number(1 << (first - 0xcc), (b) => b.readUIntBE(0, b.length));
      case 0xcf: return number(8, (b) => Number(b.readBigUInt64BE()));
      case 0xd0: case 0xd1: case 0xd2: return number(1 << (first - 0xd0), (b) => b.readIntBE(0, b.length));
      case 0xd3: return number(8, (b) => Number(b.readBigInt64BE()));
      case 0xd9: case 0xda: case 0xdb: return string(length(1 << (first - 0xd9)));
      case 0xdc: case 0xdd: return items(length(2 << (first - 0xdc)));
      case 0xde: case 0xdf: return map(length(2 << (first - 0xde)));
    }
    throw new Error(`byte 0x${first.toString(16)}`);
  })();
  return value === undefined ? undefined : [value, at];
}

class Float extends Number {} // so that 2.0 is packed as it came

function head(short, most, codes, n) {
  if (n <= most) return Buffer.from([short | n]);
  const size = [1, 2, 4].find((s) => codes[s] && n < 2 ** (8 * s));
  const packed = Buffer.alloc(1 + size);
  packed[0] = codes[size];
  packed.writeUIntBE(n, 1, size);
  return packed;
}

function pack(value) {
  if (value === null) return Buffer.from([0xc0]);
  if (typeof value === "boolean") return Buffer.from([value ? 0xc3 : 0xc2]);
  if (value instanceof Float || (typeof value === "number" && !Number.isInteger(value))) {
    const packed = Buffer.alloc(9, 0xcb);
    packed.writeDoubleBE(Number(value), 1);
    return packed;
  }
  if (typeof value === "number") {
    assert(value >= 0, "no vector has a negative integer");
    return head(0, 127, { 1: 0xcc, 2: 0xcd, 4: 0xce }, value);
  }
  if (typeof value === "string") {
    const text = Buffer.from(value);
    return Buffer.concat([head(0xa0, 31, { 1: 0xd9, 2: 0xda, 4: 0xdb }, text.length), text]);
  }
  if (Array.isArray(value)) return Buffer.concat([head(0x90, 15, { 2: 0xdc, 4: 0xdd }, value.length), ...value.map(pack)]);
  const pairs = Object.entries(value).flat().map(pack);
  return Buffer.concat([head(0x80, 15, { 2: 0xde, 4: 0xdf }, pairs.length / 2), ...pairs]);
}

const plain = (value) => JSON.parse(JSON.stringify(value));
const vectors = JSON.parse(fs.readFileSync(process.argv[2]));
for (const { name, hex, message } of vectors) {
  const [found, end] = unpack(Buffer.from(hex, "hex"), 0);
  assert.deepStrictEqual(plain(found), message, name);
  assert.strictEqual(end, hex.length / 2, name);
  assert.strictEqual(pack(found).toString("hex"), hex, name);
}

if (process.argv[3]) {
  const bytes = Object.fromEntries(vectors.map(({ name, hex }) => [name, Buffer.from(hex, "hex")]));
  const said = [];
  let rest = Buffer.alloc(0);
  const daemon = net.connect(process.argv[3], () => daemon.write(bytes["hello"]));
  const steps = [ // [is it this message that we wait for?, what we say then]
    [(m) => m[0] === 1 && m[1] === 1, () => bytes["subscribe"]],
    [(m) => m[1] === "event", () => pack([0, 2, "complete", [{ prompt: "say:héllo;wait" }]])],
    [(m) => m[1] === "text" && m[2][0].text === "o", () => bytes["cancel"]],
    [(m) => m[0] === 1 && m[1] === 2, () => bytes["cancel of a subscription"]],
    [(m) => m[0] === 1 && m[1] === 4, () => Buffer.from([0x93, 0, 9, 0xa0])],
  ];
  daemon.on("data", (data) => {
    rest = Buffer.concat([rest, data]);
    for (let item; (item = unpack(rest, 0)) !== undefined; rest = rest.subarray(item[1])) {
      said.push(plain(item[0]));
      if (steps.length && steps[0][0](item[0])) daemon.write(steps.shift()[1]());
    }
  });
  daemon.on("end", () => console.log(JSON.stringify(said)));
}
