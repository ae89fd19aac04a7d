// Perfetto's own trace processor, the WebAssembly that its UI runs, behind this process's standard
// input and output:
//
//     node trace_engine.mjs FOLDER
//
// FOLDER holds engine_bundle.js and trace_processor.wasm. Bytes of the trace processor's RPC come
// in and go out as they are. The bundle is a web worker's program, so it gets here what a worker
// has, and its files from FOLDER.

import { readFileSync } from "node:fs";
import { join } from "node:path";
import vm from "node:vm";

const folder = process.argv[2];

class XMLHttpRequest {
  open(method, name) {
    this.name = name;
  }

  send() {
    this.response = readFileSync(join(folder, this.name)).buffer;
  }
}

const worker = { location: { href: "file:///" } };
const log = (...words) => console.error(...words);
vm.runInNewContext(readFileSync(join(folder, "engine_bundle.js"), "utf8"), {
  self: worker,
  WorkerGlobalScope: class {},
  XMLHttpRequest,
  console: { log, warn: log, error: log },
  crypto,
  performance,
  setTimeout,
  TextDecoder,
  TextEncoder,
  // The classes of the values that WebAssembly makes and throws.
  TypeError,
  Uint8Array,
  WebAssembly,
});
const port = { postMessage: (bytes) => process.stdout.write(bytes) };
worker.onmessage({ data: port });
// The engine has started once the promises that are kept by now have run.
setImmediate(() => process.stdin.on("data", (chunk) => port.onmessage({ data: new Uint8Array(chunk) })));
