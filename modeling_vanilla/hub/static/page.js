// All that the page loads lies beside it: transformers.js, onnxruntime's WebAssembly, and the model in 8 bits.
import { env, pipeline } from "./transformers.min.js";

env.allowRemoteModels = false;
env.allowLocalModels = true;
env.localModelPath = ".";
// The browser asks whether a file has changed; the library's own caches would keep the model that was there first.
env.useBrowserCache = env.useWasmCache = false;
const address = (name) => new URL(name, import.meta.url).href;
Object.assign(env.backends.onnx.wasm, {
  wasmPaths: { mjs: address("ort-wasm-simd-threaded.mjs"), wasm: address("ort-wasm-simd-threaded.wasm") },
  proxy: true, // in a worker, so that the page answers meanwhile
});

const form = document.querySelector("form");
const [button, status] = form.querySelectorAll("button, [role=status]");
const translator = pipeline("translation", "model", { dtype: "q8", device: "wasm" });

async function translate(line) {
  const translate = await translator;
  const max_new_tokens = translate.tokenizer(line).input_ids.dims[1] + 50; // the paper's limit
  return (await translate(line, { max_new_tokens }))[0].translation_text;
}

// What `work` resolves to is shown, or why it failed.
async function show(message, work) {
  button.disabled = true;
  status.textContent = message;
  try {
    status.textContent = await work();
  } catch (error) {
    status.textContent = `It failed: ${error.message ?? error}`;
  }
  button.disabled = false;
}

form.onsubmit = (event) => {
  event.preventDefault();
  show("Translating …", async () => {
    const start = performance.now();
    const translations = [];
    // One by one: of several at once, the library continues those that are finished until the last one is.
    for (const line of form.text.value.split("\n")) translations.push(line.trim() && (await translate(line)));
    form.translation.value = translations.join("\n");
    return `${Math.round(performance.now() - start)} ms`;
  });
};

for (const example of (await (await fetch("examples.txt")).text()).split("\n").filter(Boolean)) {
  const choice = document.createElement("button");
  choice.textContent = example;
  choice.onclick = () => {
    form.text.value = example;
    button.click(); // nothing, while it is disabled
  };
  document.querySelector("#examples").append(choice);
}
show("Loading the model …", async () => {
  await translator;
  return "The model is here.";
});
