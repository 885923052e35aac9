// Every page of a built site from disk, offline, in headless Chromium: NODE_MODULES SITE.
// Prints one JSON line per view: requests, errors, violations of axe-core, pages that are too wide.
import { createRequire } from "node:module";
import fs from "node:fs";
import path from "node:path";

const [modules, site] = process.argv.slice(2);
const { chromium } = createRequire(`${modules}/`)("playwright-core");
const axe = fs.readFileSync(`${modules}/axe-core/axe.min.js`, "utf8");
const flags = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
  "--disable-background-networking", "--disable-component-update", "--disable-sync"];
const pages = fs.readdirSync(site, { recursive: true }).filter((name) => name.endsWith(".html"));
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: flags });
for (const [width, colorScheme] of [[1280, "light"], [390, "light"], [1280, "dark"], [390, "dark"]]) {
  const context = await browser.newContext({
    viewport: { width, height: 844 }, colorScheme, offline: true, bypassCSP: true });
  const page = await context.newPage();
  const foreign = [], errors = [], violations = [], wide = [];
  page.on("request", (each) => { if (!/^(file|data):/.test(each.url())) foreign.push(each.url()); });
  page.on("pageerror", (error) => errors.push(error.message));
  for (const name of pages) {
    await page.goto(`file://${path.join(site, name)}`);
    await page.waitForTimeout(100);
    if (await page.evaluate(() => document.documentElement.scrollWidth > innerWidth)) wide.push(name);
    await page.evaluate(axe);
    for (const each of (await page.evaluate(() => axe.run())).violations)
      violations.push(`${name}: ${each.id}: ${each.nodes[0].html}`);
  }
  // The search, which would need a worker from a server.
  await page.goto(`file://${path.join(site, "index.html")}`);
  const query = page.locator("input[name=query]");
  await (width < 800 ? page.locator("label[for=__search]").first() : query).click();
  await query.pressSequentially("equation 3 lightconv", { delay: 20 });
  await page.waitForSelector(".md-search-result__item a");
  const found = await page.locator(".md-search-result__item a").first().getAttribute("href");
  console.log(JSON.stringify({ width, colorScheme, pages: pages.length, foreign, errors, violations,
    wide, found }));
  await context.close();
}
await browser.close();
