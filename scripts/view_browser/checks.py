"""The checks in the browser."""

import signal
import time
import urllib.parse

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"]

DESKTOP, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844}
TABS = ["curves", "overview", "recipe", "samples", "log", "model", "memory", "profile"]
PAGES = ["comparisons", "sweeps", "coordinates"]

# Runs before any script of the page and records violations of the content security policy.
WATCH = """
window.violations = [];
document.addEventListener('securitypolicyviolation', (event) => violations.push(event.violatedDirective + ' ' + event.blockedURI));
"""

FOCUSED = """() => {
  const node = document.activeElement, box = node.getBoundingClientRect(), style = getComputedStyle(node);
  return { name: (node.getAttribute('aria-label') || node.textContent || '').trim().slice(0, 40), tag: node.tagName, role: node.getAttribute('role'),
           isSeen: box.width > 0 && box.height > 0 && box.bottom > 0 && box.top < innerHeight, isOutlined: style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) > 0 };
}"""


def view_hash(**view):
    """Returns the fragment of the address that selects a view, with lists encoded as the page does."""
    texts = {key: ",".join(map(quoted, value)) if isinstance(value, list) else str(value) for key, value in view.items()}
    return "#" + urllib.parse.urlencode(texts)


def quoted(text):
    return urllib.parse.quote(text, safe="")


def until(page, expression, seconds=15):
    """Waits until an expression is true.

    Playwright's own wait evaluates text inside the page, which the content security policy refuses.
    """
    end = time.monotonic() + seconds
    while not page.evaluate(expression):
        if time.monotonic() > end:
            raise TimeoutError(f"this did not become true in {seconds} s: {expression}")
        time.sleep(0.02)


class Browser:
    """A browser and the failures found in it."""

    def __init__(self, launched, address, out):
        self.launched, self.address, self.out = launched, address, out
        self.origin = "{0.scheme}://{0.netloc}".format(urllib.parse.urlsplit(address))
        #: The address of the page without its token.
        self.page = address.split("?")[0]
        self.failures = []

    def fail(self, where, what):
        self.failures.append(f"{where}: {what}")

    def check(self, where, holds, what):
        if not holds:
            self.fail(where, what)

    def context(self, where, viewport=DESKTOP, theme="light", offline=False):
        context = self.launched.new_context(viewport=viewport, color_scheme=theme, offline=offline, reduced_motion="reduce")
        context.add_init_script(WATCH)
        page = context.new_page()
        page.on("console", lambda message: message.type in ("error", "warning") and self.fail(where, f"console: {message.text}"))
        page.on("pageerror", lambda error: self.fail(where, f"error: {error}"))
        page.on("dialog", lambda dialog: (self.fail(where, f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: self.requested(where, request.url, offline))
        return context, page

    def requested(self, where, url, offline):
        allowed = ("file:", "data:") if offline else (self.origin, "data:")
        self.check(where, url.startswith(allowed), f"a request to {url}")

    def settle(self, page):
        page.wait_for_load_state("networkidle")
        page.wait_for_timeout(250)

    def picture(self, page, where):
        """Takes a picture and checks what must hold on every page."""
        self.check(where, not page.evaluate("violations"), f"content security policy: {page.evaluate('violations')}")
        wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        self.check(where, wide <= 0, f"the page is {wide} pixels wider than the window")
        self.check(where, "taken" not in page.title(), "a script in untrusted text ran")
        small = page.evaluate("""[...document.querySelectorAll('button, input, select, summary')].filter((node) =>
            node.getClientRects().length > 0 && !(node.getAttribute('aria-label') || node.textContent || node.closest('label')?.textContent || '').trim()).length""")
        self.check(where, small == 0, f"{small} controls have no name")
        page.screenshot(path=self.out / f"{where}.png")


def all_checks(browser_path, address, single_file, runs, out, live_run):
    """Runs all checks and returns the failures."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=browser_path, args=FLAGS)
        browser = Browser(launched, address, out)
        first_address(browser)
        for check in [thousand_runs, every_page, keyboard, zoom_and_spike, hostile_text, state_in_address]:
            check(browser, runs)
        live(browser, live_run)
        alone(browser, single_file, runs)
        launched.close()
        return browser.failures


def opened(browser, where, hash_="", **options):
    """Opens a view from the server, after the address with the token has set the cookie."""
    context, page = browser.context(where, **options)
    page.goto(browser.address)
    page.goto(browser.page + hash_)
    browser.settle(page)
    return context, page


def first_address(browser):
    """Checks that the token becomes a cookie that scripts cannot see, and leaves the address."""
    context, page = browser.context("address")
    page.goto(browser.address)
    browser.check("address", "token" not in page.url, f"the address is still {page.url}")
    browser.check("address", page.evaluate("document.cookie") == "", "a script can read the cookie")
    (cookie,) = context.cookies()
    browser.check("address", cookie["httpOnly"] and cookie["sameSite"] == "Strict", f"the cookie is {cookie}")
    context.close()


def thousand_runs(browser, _):
    context, page = browser.context("thousand-runs")
    page.goto(browser.address)
    browser.settle(page)
    begun = time.monotonic()
    page.goto(browser.page)
    page.wait_for_selector(".runs tbody tr:nth-child(30)")
    page.locator("#filter").fill("optimizer.lr<0.0005 status=ok")
    until(page, "/^[0-9]+ of 1,0/.test(document.querySelector('.count').textContent)")
    seconds = time.monotonic() - begun
    page.locator("#filter").fill("")
    page.wait_for_selector(".runs tbody tr:nth-child(1000)", state="attached")
    page.locator("#filter").fill("optimizer.lr<0.0005 status=ok")
    print(f"1,000 runs listed and filtered in {seconds:.2f} s")
    browser.check("thousand-runs", seconds < 2, f"the table took {seconds:.2f} s")
    page.locator("[data-sort=val_loss]").click()
    browser.settle(page)
    losses = page.evaluate("""[...document.querySelectorAll('.runs tbody tr')].map((row) => row.children[[...document.querySelectorAll('.runs th')].findIndex(
        (head) => head.querySelector('[data-sort=val_loss]'))].textContent).filter((text) => text !== '—').map(Number)""")
    browser.check("thousand-runs", losses == sorted(losses) and len(losses) > 10, "the table is not sorted by val_loss")
    browser.settle(page)
    tall = page.evaluate("document.documentElement.scrollHeight - innerHeight")
    browser.check("thousand-runs", tall <= 0, f"the page is {tall} pixels taller than the window")
    browser.picture(page, "thousand-runs")
    page.get_by_role("button", name="Select shown", exact=True).click()
    browser.settle(page)
    browser.picture(page, "many-curves")
    context.close()


def every_page(browser, runs):
    selected = [runs["plain"], runs["hostile"]]
    views = [(tab, view_hash(runs=selected, tab=tab)) for tab in TABS] + [(page, view_hash(page=page)) for page in PAGES]
    sizes = [("desktop", DESKTOP), ("phone", PHONE)]
    for size, viewport in sizes:
        for theme in ["light", "dark"]:
            context, page = opened(browser, f"{size}-{theme}", viewport=viewport, theme=theme)
            for name, hash_ in views:
                page.goto(browser.page + hash_)
                browser.settle(page)
                page.evaluate("document.querySelector('.selection, .document-body')?.scrollIntoView()") if size == "phone" else None
                browser.picture(page, f"{name}-{size}-{theme}")
            for number in range(page.locator(".side button").count()):
                page.locator(".side button").nth(number).click()
            context.close()
    for name in ["rate", "layers"]:
        context, page = opened(browser, f"comparison-{name}", view_hash(page="comparisons"))
        page.locator(".side button", has_text=name).first.click()
        browser.settle(page)
        browser.picture(page, f"comparison-{name}")
        browser.check(f"comparison-{name}", page.locator(".document .picture circle").count() > 0, "the picture shows no pairs")
        context.close()


def keyboard(browser, runs):
    """Checks that Tab reaches everything in the order of the page, and that the focus is always visible."""
    context, page = opened(browser, "keyboard", view_hash(runs=[runs["plain"]], filter="recipe=quickstart"))
    seen = []
    for _ in range(120):
        page.keyboard.press("Tab")
        focused = page.evaluate(FOCUSED)
        if focused["tag"] == "BODY" or (seen and focused["name"] == seen[0]["name"]):
            break
        seen.append(focused)
        browser.check("keyboard", focused["isSeen"] and focused["isOutlined"], f"the focus is not visible: {focused}")
    names = [focused["name"] for focused in seen]
    wanted = ["Skip to the content", "Runs", "Comparisons", "Sweeps", "Coordinates", "Theme", "Filter runs", "Columns", "Select shown", "Clear", "run", "Curves", "step", "Metrics", "Data table"]
    at = -1
    for name in wanted:
        at = next((i for i in range(at + 1, len(names)) if names[i].startswith(name)), None)
        if at is None:
            browser.fail("keyboard", f"Tab does not reach {name} in order; it reaches {names}")
            break
    browser.check("keyboard", sum(focused["tag"] == "TR" for focused in seen) == 1, "the table of runs is not a single Tab stop")
    page.locator(".runs tbody tr[tabindex='0']").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press(" ")
    page.wait_for_timeout(300)
    browser.check("keyboard", page.locator(".runs tbody tr[aria-selected='true']").count() == 2, "Space does not add a run")
    browser.settle(page)
    page.locator(".chart").first.focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    page.wait_for_timeout(200)
    browser.check("keyboard", "step" in page.locator(".chart .for-readers").first.inner_text(), "the arrow keys do not read values of a chart")
    browser.picture(page, "keyboard")
    page.keyboard.press("+")
    page.wait_for_timeout(600)
    browser.check("keyboard", "zoom=" in page.url, "the + key does not zoom")
    context.close()


def zoom_and_spike(browser, runs):
    """Checks that a curve of 200,000 steps shows a spike of one step, and that zooming requests its range."""
    import folder

    asked = []
    context, page = opened(browser, "spike", view_hash(runs=[runs["long"]], metrics=["loss"], filter="recipe=quickstart"))
    table = page.locator(".panel .data-table")
    table.locator("summary").click()
    until(page, "document.querySelectorAll('.data-table tbody tr').length > 1")
    browser.check("spike", f"{folder.SPIKE}" in table.inner_text(), "the curve does not show the spike")
    browser.picture(page, "spike")
    page.on("request", lambda request: asked.append(request.url))
    box = page.locator(".u-over").bounding_box()
    at = box["x"] + box["width"] * folder.SPIKE_STEP / folder.LONG
    page.mouse.move(at - 20, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(at + 20, box["y"] + 60, steps=5)
    page.mouse.up()
    browser.settle(page)
    until(page, "document.querySelector('.data-table tbody td').textContent.startsWith('1')")
    browser.check("spike", any("from=" in url for url in asked), "zooming requested no rows")
    browser.check("spike", f"{folder.SPIKE}" in table.inner_text(), "the zoomed curve does not show the spike")
    browser.picture(page, "spike-zoomed")
    page.mouse.move(at, box["y"] + 80)
    page.wait_for_timeout(200)
    browser.check("spike", page.locator(".readout:visible").count() == 1, "the mouse shows no readout")
    browser.picture(page, "spike-readout")
    page.locator(".u-over").dblclick()
    page.wait_for_timeout(500)
    browser.check("spike", "zoom=" not in page.url, "a double click does not reset the zoom")
    context.close()


def hostile_text(browser, runs):
    import folder

    context, page = opened(browser, "hostile", view_hash(runs=[runs["hostile"]], tab="samples", columns=["run", "note"], filter="recipe=quickstart"))
    sample = page.locator(".sample pre").first.inner_text()
    for part in ["</script><script>", "␛[2J", "⟨U+202E⟩txet", "\"quoted\" &amp; <b>bold</b>"]:
        browser.check("hostile", part in sample, f"the sample does not show {part} as text")
    browser.check("hostile", folder.HOSTILE[3] in sample, "the prompt is not shown as it was written")
    cells = page.locator(".before-after tbody td")
    browser.check("hostile", cells.count() == 2, "the samples before and after are not one row of two")
    browser.check("hostile", all("</script><script>" in text for text in cells.all_inner_texts()), "the table does not show a sample as text")
    browser.check("hostile", page.locator(".before-after th").all_inner_texts() == ["before training", "after step 60"], "the table does not say when its samples were taken")
    browser.check("hostile", folder.HOSTILE[0] in page.locator(".runs tbody").inner_text(), "the table does not show the note as text")
    browser.picture(page, "hostile")
    for tab in ["overview", "log", "recipe"]:
        page.locator(f"#tab-{tab}").click()
        browser.settle(page)
        text = page.locator("#tab-body").inner_text()
        browser.check("hostile", not any(ord(c) < 32 and c not in "\n\t" or c in "\u202e\u2066\x9b" for c in text), f"{tab} has raw control characters")
        browser.picture(page, f"hostile-{tab}")
    browser.check("hostile", page.locator("main script, main img, main b").count() == 0, "untrusted text became markup")
    context.close()


def state_in_address(browser, runs):
    """Checks that the address keeps the selection, so that a reload and the back button restore it."""
    context, page = opened(browser, "state", view_hash(filter="recipe=quickstart"))
    rows = page.locator(".runs tbody tr")
    rows.nth(1).locator(".mark").click()
    rows.nth(2).locator(".mark").click()
    page.get_by_role("button", name="tokens", exact=True).click()
    browser.settle(page)
    before = [page.locator(".legend").inner_text(), page.url]
    page.reload()
    browser.settle(page)
    browser.check("state", [page.locator(".legend").inner_text(), page.url] == before, "a reload does not restore the selection")
    page.get_by_role("button", name="Sweeps", exact=True).click()
    browser.settle(page)
    page.locator(".heat td button").first.click()
    browser.settle(page)
    browser.check("state", page.locator(".legend li").count() == 1, "clicking a cell of a heat map does not show its run")
    page.go_back()
    browser.settle(page)
    browser.check("state", page.locator(".heat").count() == 1, "the back button does not restore the heat map")
    context.close()


def live(browser, live_run):
    """Checks that a running run appears in the table and that its curves grow, without a reload."""
    context, page = opened(browser, "live", view_hash(filter="status=running", metrics=["loss"]))
    process = live_run()
    try:
        row = page.locator(".runs tbody tr", has_text="running").first
        row.wait_for(timeout=15_000)
        row.click()
        page.wait_for_selector(".legend .live")
        page.locator(".data-table summary").first.click()
        last = lambda: page.locator(".data-table tbody tr").last.inner_text().split()[0]
        page.wait_for_selector(".data-table tbody tr")
        before = last()
        page.wait_for_timeout(6000)
        browser.check("live", last() != before, f"the curve of a live run does not advance from {before}")
        browser.picture(page, "live")
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
    row = page.locator(".legend .live")
    row.wait_for(state="detached", timeout=10_000)
    context.close()


def alone(browser, single_file, runs):
    """Checks the single file of `xrun view --out` without a network."""
    for size, viewport in [("desktop", DESKTOP), ("phone", PHONE)]:
        for theme in ["light", "dark"]:
            where = f"file-{size}-{theme}"
            context, page = browser.context(where, viewport=viewport, theme=theme, offline=True)
            page.goto(single_file.as_uri())
            browser.settle(page)
            browser.check(where, page.locator(".legend li").count() == 2, "the runs of the file are not selected")
            browser.check(where, page.locator(".panel canvas").count() >= 4, "the file shows no curves")
            browser.picture(page, where)
            for tab in TABS[:-1]:
                page.locator(f"#tab-{tab}").click()
                browser.settle(page)
                browser.picture(page, f"{where}-{tab}")
            page.goto(single_file.as_uri() + view_hash(runs=[runs["hostile"]], tab="samples"))
            browser.settle(page)
            browser.check(where, "</script><script>" in page.locator(".sample pre").first.inner_text(), "the file does not show the sample as text")
            context.close()
