// The page in headless Chromium: NODE_MODULES ADDRESS FOLDER TEXT. Prints one JSON line per view.
import { createRequire } from "node:module";
import fs from "node:fs";

const [modules, base, folder, text] = process.argv.slice(2);
const { chromium } = createRequire(`${modules}/`)("playwright-core");
const axe = fs.readFileSync(`${modules}/axe-core/axe.min.js`, "utf8");
const flags = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
  "--disable-background-networking", "--disable-component-update", "--disable-sync"];
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: flags });
for (const [width, colorScheme] of [[1280, "light"], [1280, "dark"], [390, "light"], [390, "dark"]]) {
  const page = await browser.newPage({ viewport: { width, height: 844 }, colorScheme, bypassCSP: true });
  const foreign = [], errors = [], violations = [];
  page.on("request", (each) => {
    if (!each.url().startsWith(base) && !each.url().startsWith("data:")) foreign.push(each.url());
  });
  page.on("pageerror", (error) => errors.push(error.message));
  page.on("console", (each) => { if (each.type() === "error") errors.push(each.text()); });
  const check = async (name) => {
    await page.screenshot({ path: `${folder}/${name}-${width}-${colorScheme}.png`, fullPage: true });
    for (const each of (await page.evaluate(() => axe.run())).violations)
      violations.push(`${name}: ${each.id}: ${each.nodes[0].html}`);
  };
  await page.goto(base);
  await page.waitForSelector("#source option", { state: "attached" });
  await page.evaluate(axe);
  await check("empty");
  await page.locator("#input").pressSequentially(text, { delay: 5 });  // autofocus, then typed
  await page.waitForSelector(".word");
  await page.locator(".word").first().hover();
  const hovered = await page.locator("#status").textContent();
  await check("translation");
  await page.locator("#input").focus();
  for (let i = 0; i < 4; i++) await page.keyboard.press("Tab");  // clear, the box, two words
  const focused = await page.locator("#status").textContent();
  await page.locator("#drawer summary").focus();
  await page.keyboard.press("Enter");
  await page.waitForSelector("canvas");
  await check("kernels");
  const answers = { translation: await page.locator("#output").textContent() };
  for (const name of ["Summarise", "Complete"]) {
    await page.getByRole("button", { name }).click();
    await page.locator("#input").fill(text);
    if (name === "Complete") await page.keyboard.press("Control+Enter");
    await page.waitForFunction((typed) => document.getElementById("output").textContent.length > 1 &&
      document.getElementById("output").textContent !== typed, text);
    answers[name] = await page.locator("#output").textContent();
    await check(name);
  }
  const wide = await page.evaluate(() => document.documentElement.scrollWidth > innerWidth);
  console.log(JSON.stringify({ width, colorScheme, foreign, errors, violations, hovered, focused,
    answers, wide }));
  await page.close();
}
await browser.close();
