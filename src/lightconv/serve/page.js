"use strict";
const at = (id) => document.getElementById(id);
const make = (tag, more = {}, ...children) => {
  const found = Object.assign(document.createElement(tag), more);
  found.append(...children);
  return found;
};
let models = [], kind = "", model = null, languages = [], key = "", turn = 0, timer = 0;
let running = null;

const KINDS = {
  translation: { tab: "Translate", out: "Translation", label: "Text" },
  summary: { tab: "Summarise", out: "Summary", label: "Article" },
  completion: { tab: "Complete", out: "Completion", label: "Beginning" },
};

async function post(path, body, signal) {
  const headers = { "content-type": "application/json" };
  if (key) headers.authorization = `Bearer ${key}`;
  const answer = await fetch(path, { method: "POST", headers, body: JSON.stringify(body), signal });
  if (!answer.ok) {
    const told = await answer.json().catch(() => ({}));
    throw new Error(told.error?.message ?? told.error ?? `error ${answer.status}`);
  }
  return answer;
}

function say(text) { at("status").textContent = text; }

function choose(next) {
  kind = next;
  model = models.find((each) => each.kind === kind);
  for (const tab of at("tabs").children) tab.ariaPressed = String(tab.dataset.kind === kind);
  at("input-label").textContent = KINDS[kind].label;
  at("output-label").textContent = KINDS[kind].out;
  at("languages").hidden = kind !== "translation";
  at("more").hidden = kind !== "completion";
  at("others").hidden = true;
  at("output").replaceChildren();
  refresh();
}

function fill(select, codes, value) {
  const names = Object.fromEntries(languages.map((each) => [each.code, each.name]));
  select.replaceChildren(...codes.map((code) => make("option", { value: code }, names[code] ?? code)));
  if (codes.includes(value)) select.value = value;
}

function fillTargets() {
  const found = languages.find((each) => each.code === at("source").value);
  fill(at("target"), found ? found.targets : [], at("target").value);
  model = models.find((each) => each.kind === "translation" &&
    each.source === at("source").value && each.target === at("target").value) ?? model;
}

async function refresh() {
  const now = ++turn, text = at("input").value;
  at("count").textContent = `${text.length} characters`;
  clearTimeout(timer);
  running?.abort();
  if (!text.trim()) {
    at("output").replaceChildren();
    at("others").hidden = true;
    say("");
    return;
  }
  if (kind === "completion") return;
  timer = setTimeout(() => answer(now, text), 180);
}

async function answer(now, text) {
  running = new AbortController();
  const begin = performance.now();
  say("…");
  try {
    if (kind === "summary") {
      const found = await (await post("/summarize", { q: text, model: model.id }, running.signal)).json();
      if (now !== turn) return;
      at("output").replaceChildren(found.summary);
    } else {
      const body = { q: text, source: at("source").value, target: at("target").value, alternatives: 3 };
      const found = await (await post("/translate", body, running.signal)).json();
      if (now !== turn) return;
      at("output").replaceChildren(found.translatedText);
      at("alternatives").replaceChildren(...found.alternatives.map((each) => make("li", {}, each)));
      at("others").hidden = found.alternatives.length === 0;
      if (text.length <= 1000) timer = setTimeout(() => explain(now, body), 400);
    }
    say(`${Math.round(performance.now() - begin)} ms`);
    if (at("drawer").open) drawKernels();
  } catch (error) {
    if (error.name !== "AbortError" && now === turn) say(error.message);
  }
}

// Words of the translation, each with what it came from.
async function explain(now, { q, source, target }) {
  try {
    const found = await (await post("/words", { q, source, target }, running.signal)).json();
    if (now !== turn) return;
    const shown = [];
    for (const piece of found.pieces) {
      if (piece.keep !== undefined) { shown.push(piece.keep); continue; }
      const from = piece.target.map((_, t) =>
        piece.pairs.filter((pair) => pair[1] === t).map((pair) => piece.source[pair[0]]));
      piece.target.forEach((word, t) => {
        const sure = Math.exp(piece.logprobs[t]);
        const name = sure < 0.25 ? "word doubt" : sure < 0.6 ? "word unsure" : "word";
        const origin = from[t].join(" ") || "nothing";
        const node = make("span", { className: name, tabIndex: 0,
          title: `${origin} (${Math.round(100 * sure)} %)` }, word);
        node.setAttribute("role", "note");
        node.setAttribute("aria-label", `${word}, from ${origin}, ${Math.round(100 * sure)} percent`);
        for (const event of ["mouseenter", "focus"])
          node.addEventListener(event, () => { node.classList.add("lit"); say(`${word} ← ${origin}`); });
        for (const event of ["mouseleave", "blur"])
          node.addEventListener(event, () => node.classList.remove("lit"));
        shown.push(...(t ? [" "] : []), node);
      });
    }
    at("output").replaceChildren(...shown);
  } catch (error) { /* the translation stays as it is */ }
}

async function complete() {
  const now = ++turn, prompt = at("input").value;
  running?.abort();
  running = new AbortController();
  at("stop").hidden = false;
  at("output").replaceChildren(prompt);
  try {
    const answer = await post("/v1/completions", { model: model.id, prompt, max_tokens: 100,
      temperature: 0.8, seed: Math.floor(Math.random() * 1e9), stream: true }, running.signal);
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done || now !== turn) break;
      const events = (rest + value).split("\n\n");
      rest = events.pop();
      for (const event of events) {
        const data = event.replace(/^data: /, "");
        if (data === "[DONE]") continue;
        const found = JSON.parse(data);
        if (found.error) throw new Error(found.error.message);
        at("output").append(found.choices[0]?.text ?? "");
      }
    }
    say("");
  } catch (error) { say(error.name === "AbortError" ? "stopped" : error.message); }
  at("stop").hidden = true;
  if (at("drawer").open) drawKernels();
}

async function drawKernels() {
  const text = at("input").value;
  at("kernels").replaceChildren();
  if (!text.trim() || !model) { at("kernels-status").textContent = "Write something first."; return; }
  at("kernels-status").textContent = "…";
  try {
    const found = await (await post("/kernels", { q: text, model: model.id })).json();
    at("kernels-status").textContent = found.layers.length ? ""
      : "This model has no dynamic convolutions.";
    for (const layer of found.layers) {
      const heads = layer.weights.map((head, number) => {
        const canvas = make("canvas", { width: head[0].length, height: head.length });
        canvas.style.width = `${4 * head[0].length}px`;
        canvas.style.height = `${12 * head.length}px`;
        canvas.setAttribute("role", "img");
        canvas.setAttribute("aria-label", `${layer.layer}, head ${number + 1}`);
        const pen = canvas.getContext("2d"), picture = pen.createImageData(head[0].length, head.length);
        head.flat().forEach((weight, i) => {
          const shade = 255 - Math.round(255 * Math.min(1, Math.sqrt(Math.abs(weight))));
          picture.data.set([shade, shade, weight < 0 ? 255 : shade, 255], 4 * i);
        });
        pen.putImageData(picture, 0, 0);
        return canvas;
      });
      at("kernels").append(make("div", { className: "layer" }, make("h3", {}, layer.layer),
        make("div", { className: "heads" }, make("div", { className: "rows" }, found.tokens.join("\n")),
          ...heads)));
    }
  } catch (error) { at("kernels-status").textContent = error.message; }
}

async function start() {
  const get = async (path) => (await fetch(path)).json();
  let settings;
  [models, languages, settings] = await Promise.all(
    [get("/v1/models").then((found) => found.data), get("/languages"), get("/frontend/settings")]);
  at("key-button").hidden = !settings.keyRequired;
  const kinds = Object.keys(KINDS).filter((each) => models.some((one) => one.kind === each));
  at("tabs").replaceChildren(...kinds.map((each) => {
    const tab = make("button", { type: "button", onclick: () => choose(each) }, KINDS[each].tab);
    tab.dataset.kind = each;
    return tab;
  }));
  at("tabs").hidden = kinds.length < 2;
  fill(at("source"), languages.filter((each) => each.targets.length).map((each) => each.code),
    settings.language.source.code);
  fillTargets();
  choose(kinds[0]);
  if (kinds[0] === "translation") fillTargets();
}

at("input").addEventListener("input", refresh);
at("source").addEventListener("change", () => { fillTargets(); refresh(); });
at("target").addEventListener("change", () => { fillTargets(); refresh(); });
at("swap").addEventListener("click", () => {
  const [from, to] = [at("source").value, at("target").value];
  if (!languages.find((each) => each.code === to)?.targets.includes(from)) {
    say(`no model from ${to} to ${from}`);
    return;
  }
  at("source").value = to;
  fillTargets();
  at("target").value = from;
  fillTargets();
  at("input").value = at("output").textContent;
  refresh();
});
at("clear").addEventListener("click", () => { at("input").value = ""; at("input").focus(); refresh(); });
at("copy").addEventListener("click", async () => {
  await navigator.clipboard.writeText(at("output").textContent);
  say("copied");
});
at("more").addEventListener("click", complete);
at("stop").addEventListener("click", () => running?.abort());
at("input").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && kind === "completion") complete();
});
at("drawer").addEventListener("toggle", () => { if (at("drawer").open) drawKernels(); });
at("key-button").addEventListener("click", () => { key = prompt("Key") ?? key; refresh(); });
start().catch((error) => say(error.message));
