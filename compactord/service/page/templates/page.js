(() => {
  const every = 5000, patience = 10000;
  const live = document.getElementById("live"), main = document.querySelector("main");
  const state = document.createElement("span"), pause = document.createElement("button");
  state.setAttribute("role", "status");
  pause.type = "button";
  pause.textContent = "Pause";
  live.replaceChildren(state, pause);
  let timer = 0, paused = false, last = new Date();
  const clock = moment => moment.toISOString().slice(11, 19) + "Z";
  const say = (text, bad) => {
    if (state.textContent !== text) state.textContent = text;
    state.className = bad ? "mark trouble" : "";
    live.dataset.state = bad ? "lost" : paused ? "paused" : "live";
  };
  const plan = () => {
    clearTimeout(timer);
    if (!paused && !document.hidden) timer = setTimeout(refresh, every);
  };
  const keep = fresh => {
    const open = new Map([...main.querySelectorAll("details[id]")].map(d => [d.id, d.open]));
    const sides = new Map([...main.querySelectorAll(".scroll[id]")].map(d => [d.id, d.scrollLeft]));
    const focus = main.contains(document.activeElement) ? document.activeElement : null;
    const href = focus && focus.getAttribute("href"), id = focus && focus.id;
    const x = scrollX, y = scrollY;
    main.replaceChildren(...fresh.childNodes);
    for (const d of main.querySelectorAll("details[id]"))
      if (open.has(d.id)) d.open = open.get(d.id);
    for (const d of main.querySelectorAll(".scroll[id]")) d.scrollLeft = sides.get(d.id) || 0;
    const again = id ? document.getElementById(id)
      : href && [...main.querySelectorAll("a")].find(a => a.getAttribute("href") === href);
    if (again) again.focus({preventScroll: true});
    scrollTo(x, y);
  };
  const refresh = async () => {
    try {
      const answer = await fetch(location.href, {
        cache: "no-store", headers: {Accept: "text/html"}, signal: AbortSignal.timeout(patience)});
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const fresh = page.querySelector("main");
      if (paused) return;
      if (!fresh) throw new Error("no page");
      const chosen = getSelection();
      if (!chosen.isCollapsed && main.contains(chosen.anchorNode)) {
        say("Waits while text is selected", false);
      } else {
        keep(fresh);
        document.title = page.title;
        last = new Date();
        say("Live", false);
      }
    } catch {
      if (paused) return;
      say("The daemon does not answer; numbers of " + clock(last), true);
    }
    plan();
  };
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.textContent = paused ? "Resume" : "Pause";
    say(paused ? "Paused at " + clock(last) : "Live", false);
    if (paused) clearTimeout(timer); else refresh();
  });
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) clearTimeout(timer); else if (!paused) refresh();
  });
  say("Live", false);
  plan();
})();
