// Refreshes the page's main part with what the server renders; the script itself renders nothing.
(() => {
  const everyMs = 5000, timeoutMs = 10000;
  const live = document.getElementById("live"), main = document.querySelector("main");
  const state = document.createElement("span"), freeze = document.createElement("button");
  state.setAttribute("role", "status");
  freeze.type = "button";
  freeze.textContent = "Freeze page";
  live.replaceChildren(state, freeze);
  let timer = 0, frozen = false, last = new Date();
  const clock = moment => moment.toISOString().slice(11, 19) + "Z";
  const show = (text, bad) => {
    if (state.textContent !== text) state.textContent = text;
    state.className = bad ? "mark trouble" : "";
    live.dataset.state = bad ? "lost" : frozen ? "frozen" : "live";
  };
  const schedule = () => {
    clearTimeout(timer);
    if (!frozen && !document.hidden) timer = setTimeout(refresh, everyMs);
  };
  // Open details, sideways scrolling, focus and position survive.
  const replaceMain = fresh => {
    const open = new Map([...main.querySelectorAll("details[id]")].map(d => [d.id, d.open]));
    const lefts = new Map([...main.querySelectorAll(".scroll[id]")].map(d => [d.id, d.scrollLeft]));
    const focus = main.contains(document.activeElement) ? document.activeElement : null;
    const href = focus && focus.getAttribute("href"), id = focus && focus.id;
    const x = scrollX, y = scrollY;
    main.replaceChildren(...fresh.childNodes);
    for (const d of main.querySelectorAll("details[id]"))
      if (open.has(d.id)) d.open = open.get(d.id);
    for (const d of main.querySelectorAll(".scroll[id]")) d.scrollLeft = lefts.get(d.id) || 0;
    const focused = id ? document.getElementById(id)
      : href && [...main.querySelectorAll("a")].find(a => a.getAttribute("href") === href);
    if (focused) focused.focus({preventScroll: true});
    scrollTo(x, y);
  };
  const refresh = async () => {
    try {
      const response = await fetch(location.href, {
        cache: "no-store", headers: {Accept: "text/html"}, signal: AbortSignal.timeout(timeoutMs)});
      const page = new DOMParser().parseFromString(await response.text(), "text/html");
      const fresh = page.querySelector("main");
      if (frozen) return;
      if (!fresh) throw new Error("no page");
      const selected = getSelection();
      if (!selected.isCollapsed && main.contains(selected.anchorNode)) {
        show("Waits while text is selected", false);
      } else {
        replaceMain(fresh);
        document.title = page.title;
        last = new Date();
        show("Live", false);
      }
    } catch {
      if (frozen) return;
      show("The daemon does not answer; numbers from " + clock(last), true);
    }
    schedule();
  };
  freeze.addEventListener("click", () => {
    frozen = !frozen;
    freeze.textContent = frozen ? "Unfreeze page" : "Freeze page";
    show(frozen ? "Frozen at " + clock(last) : "Live", false);
    if (frozen) clearTimeout(timer); else refresh();
  });
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) clearTimeout(timer); else if (!frozen) refresh();
  });
  show("Live", false);
  schedule();
})();
