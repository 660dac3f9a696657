// Pictures of MLflow's pages by headless Chromium. Input (stdin): {chromium, shots: [{file, url, width, height, steps}]}.
// A step is [what, argument]: wait until a text is there or for milliseconds, click a text, scroll to a text.
const { chromium } = require('playwright-core');

(async () => {
  const plan = JSON.parse(require('fs').readFileSync(0, 'utf8'));
  const flags = ['--no-sandbox', '--disable-gpu', '--no-first-run', '--disable-background-networking', '--disable-sync'];
  const browser = await chromium.launch({ executablePath: plan.chromium, args: flags });
  let failed = 0;
  for (const shot of plan.shots) {
    const page = await browser.newPage({ viewport: { width: shot.width, height: shot.height } });
    await page.addInitScript(() => {
      localStorage.setItem('mlflow.assistant.panelOpen_v1', 'false');
      localStorage.setItem('mlflow.assistant.fab.autoOpenedOnFirstLoad_v1', 'true');
    });
    try {
      await page.goto(shot.url, { waitUntil: 'load' });
      await page.waitForTimeout(plan.settle);
      for (const [what, argument] of shot.steps) {
        const found = () => page.getByText(argument).filter({ visible: true }).first();
        if (what === 'until') await page.getByText(argument).first().waitFor({ timeout: 60000 });
        if (what === 'click') await found().click({ timeout: 20000 });
        if (what === 'scroll') await found().evaluate((e) => e.scrollIntoView({ block: 'start' }));
        if (what === 'wait') await page.waitForTimeout(argument);
      }
      await page.waitForTimeout(1500);
      // Where the record lies on the machine that made the pictures is nobody's business.
      await page.evaluate(() => {
        const words = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
        while (words.nextNode()) {
          const node = words.currentNode;
          node.nodeValue = node.nodeValue.replace(/file:\/\/\S*?\/(artifacts\/)/, '…/$1');
        }
      });
      await page.screenshot({ path: shot.file });
    } catch (error) {
      failed += 1;
      console.error(`${shot.file}: ${error.message.split('\n')[0]}`);
    }
    await page.close();
  }
  await browser.close();
  process.exit(failed ? 1 : 0);
})();
