"""The page's style and script: constants, since its security policy names them by hash."""

from __future__ import annotations

import base64
import hashlib

STYLE = """
:root{color-scheme:light dark;--ground:#f4f6f8;--card:#fff;--ink:#1a222d;--quiet:#556070;
--line:#dde2e9;--link:#0a56c4;--track:#e3e7ed;--ok:#2e8b57;--due:#b07a00;--near:#d2570f;
--over:#c3211b;--level0:#d2570f;--level:#2f6fd0;--top:#20498c;--span:#7a52c7;
--ok-ink:#0d5428;--ok-ground:#dcf4e4;--warn-ink:#664300;--warn-ground:#fff0c8;
--bad-ink:#8b120e;--bad-ground:#ffe1df;--plain-ink:#3d4653;--plain-ground:#e6eaef}
@media(prefers-color-scheme:dark){:root{--ground:#0f1319;--card:#181e27;--ink:#e5e9ef;
--quiet:#a3aebd;--line:#2c3542;--link:#86b8ff;--track:#2c3542;--ok:#4cb37a;--due:#d9a528;
--near:#ee8444;--over:#f0605a;--level0:#ee8444;--level:#5b97ee;--top:#9dc1fa;--span:#a98be8;
--ok-ink:#92e2ac;--ok-ground:#11361e;--warn-ink:#ffd980;--warn-ground:#3c2e09;
--bad-ink:#ffb6b0;--bad-ground:#4a1614;--plain-ink:#c8d0dc;--plain-ground:#2a323e}}
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--ink);
font:14px/1.45 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;
font-variant-numeric:tabular-nums;overflow-wrap:break-word}
bdi,dd,.notice,.text{overflow-wrap:anywhere}
a{color:var(--link)}
:focus-visible{outline:3px solid var(--link);outline-offset:2px;border-radius:3px}
.skip{position:absolute;left:-99em}.skip:focus{left:1em;top:.5em;background:var(--card);padding:.5em}
header{display:flex;flex-wrap:wrap;gap:.4em 1.2em;align-items:center;padding:.7em 1.2em;
background:var(--card);border-bottom:1px solid var(--line)}
header .brand{font-size:1.15em;font-weight:700;text-decoration:none;color:var(--ink)}
header form{display:flex;gap:.4em;align-items:center;margin-left:auto}
header .live{display:flex;gap:.6em;align-items:center;margin:0;color:var(--quiet)}
input,button{font:inherit;color:inherit;background:var(--ground);border:1px solid var(--quiet);
border-radius:6px;padding:.25em .6em}
button{cursor:pointer}
input{width:15em;max-width:100%;min-width:0}
main{max-width:1480px;margin:0 auto;padding:1em 1.2em 3em}
h1{font-size:1.5em;margin:.3em 0 .5em;display:flex;flex-wrap:wrap;gap:.5em;align-items:center}
h2{font-size:1.15em;margin:1.8em 0 .5em}
h3{font-size:1em;margin:0 0 .4em;display:flex;flex-wrap:wrap;gap:.2em .8em;align-items:baseline}
h3 small{font-weight:400}
p{margin:.4em 0}
small,.quiet{color:var(--quiet)}
.nowrap{white-space:nowrap}
abbr{text-decoration:underline dotted;text-underline-offset:2px;cursor:help}
.mark{display:inline-block;padding:.05em .55em;border-radius:1em;font-size:.88em;font-weight:600;
white-space:nowrap;color:var(--plain-ink);background:var(--plain-ground)}
.mark.active,.mark.committed,.mark.up,.mark.idle,.mark.well,.mark.empty{color:var(--ok-ink);
background:var(--ok-ground)}
.mark.at-trigger,.mark.near-stop,.mark.late,.mark.breach,.mark.conflict,.mark.draining,
.mark.starting{color:var(--warn-ink);background:var(--warn-ground)}
.mark.halted,.mark.error,.mark.over-stop,.mark.failed,.mark.down,.mark.forced,.mark.trouble{
color:var(--bad-ink);background:var(--bad-ground)}
.notices{list-style:none;margin:0 0 1em;padding:0;display:grid;gap:.5em}
.notice{padding:.6em .9em;border-radius:8px;border-left:5px solid;color:var(--plain-ink);
background:var(--plain-ground)}
.notice.bad{color:var(--bad-ink);background:var(--bad-ground)}
.notice.warn{color:var(--warn-ink);background:var(--warn-ground)}
.notice small,.notice a{color:inherit}.notice .mark{background:var(--card)}
.notice p:first-child{margin-top:0}.notice p:last-child{margin-bottom:0}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(142px,1fr));gap:.7em;margin:0}
.tiles>div{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:.6em .9em}
.tiles dt{color:var(--quiet);font-size:.9em}
.tiles dd{margin:0;font-size:1.2em;font-weight:600}
.tiles dd small{display:block;font-size:.72em;font-weight:400}
.meter{display:block;margin:.35em 0 .15em}
.facts{display:grid;grid-template-columns:repeat(auto-fill,minmax(215px,1fr));gap:.1em 1.4em;
margin:0;background:var(--card);border:1px solid var(--line);border-radius:10px;padding:.7em .9em}
.facts>div{padding:.25em 0;border-bottom:1px solid var(--line)}
.facts dt{color:var(--quiet);font-size:.88em}.facts dd{margin:0}
.facts small,td small,th small,.tiles time small{display:block;font-size:.82em;font-weight:400}
.scroll{overflow-x:auto;background:var(--card);border:1px solid var(--line);border-radius:10px}
table{border-collapse:collapse;width:100%}
caption{text-align:left;padding:.55em .9em;color:var(--quiet)}
th,td{padding:.42em .7em;text-align:left;vertical-align:top;border-top:1px solid var(--line)}
thead th{font-size:.86em;color:var(--quiet);font-weight:600;vertical-align:bottom}
thead th a{color:inherit}
th[aria-sort] a{color:var(--ink)}
th[aria-sort=ascending] a::after{content:" \\2191"}
th[aria-sort=descending] a::after{content:" \\2193"}
.states,.links{display:flex;flex-wrap:wrap;gap:.2em 1.1em;margin:.4em 0}
.states [aria-current]{color:var(--ink);font-weight:600;text-decoration:none}
tbody th{font-weight:600;min-width:14em}
tbody tr:hover{background:var(--ground)}
.number{text-align:right}
tbody td.number{white-space:nowrap}
td.text{min-width:13em}
svg{overflow:hidden}
.bar{display:flex;align-items:center;gap:.6em}.bar svg{flex:1;max-width:150px;min-width:60px}
.bar strong{min-width:1.6em;text-align:right}
.bar svg,.meter{height:12px;display:block}.meter{width:100%;max-width:170px}
.runs{min-width:11em}time{white-space:nowrap}
.few+.more{display:none}
.track{fill:var(--track)}
.idle-fill{fill:var(--ok)}.due-fill{fill:var(--due)}.near-stop-fill{fill:var(--near)}
.over-stop-fill{fill:var(--over)}.plain-fill{fill:var(--level)}
.tick{fill:var(--ink)}
.bands{display:flex;flex-wrap:wrap;gap:.4em 1em;list-style:none;margin:.3em 0;padding:0}
.bucket{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:.9em;
margin:0 0 1em}
.bucket figcaption{color:var(--quiet);font-size:.9em}
.bucket details{margin-top:.5em}
.bucket summary{cursor:pointer;color:var(--link)}
.lsm{display:block;width:100%;margin:.4em 0}
.lsm text{font-size:11.5px;fill:var(--ink)}.lsm .soft{fill:var(--quiet)}
.lsm .head{fill:var(--quiet);font-weight:600}
.lsm .level0{fill:var(--level0)}.lsm .level{fill:var(--level)}.lsm .oldest{fill:var(--top)}
.lsm .span{fill:var(--span)}.lsm .rule{fill:var(--line)}.lsm .room{fill:none;stroke:var(--quiet);
stroke-dasharray:3 4;opacity:.55}
.lsm .trigger{fill:var(--due)}.lsm .stop{fill:var(--over)}
.lsm .trigger-text{fill:var(--warn-ink);font-weight:600}.lsm .stop-text{fill:var(--bad-ink);
font-weight:600}
.runbook{white-space:pre-wrap;background:var(--card);
border:1px solid var(--line);border-radius:10px;
padding:.9em;font:.95em/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
.runbooks dt{font-weight:600;margin-top:.7em}.runbooks dd{margin:0;max-width:60em}
footer{color:var(--quiet);padding:0 1.2em 2em;max-width:1480px;margin:0 auto}
@media(max-width:760px){
header form{margin-left:0;width:100%}input{flex:1}
main{padding:.6em .7em 2em}
.stack thead{position:absolute;clip-path:inset(50%);height:1px;width:1px;overflow:hidden}
.stack thead:has(a){position:static;clip-path:none;height:auto;width:auto;overflow:visible;
display:block}
.stack thead:has(a) tr{display:flex;flex-wrap:wrap;gap:.1em 1.1em;border:0;padding:0 .9em .4em}
.stack thead:has(a) th{padding:0}.stack thead:has(a) th:not(:has(a)){display:none}
.stack table,.stack tbody,.stack tr,.stack th,.stack td,.stack caption{display:block;width:auto}
.stack tbody tr{display:flex;flex-wrap:wrap;align-items:baseline;gap:0 1.1em;
border-top:3px solid var(--line);padding:.3em .8em;font-size:.95em;line-height:1.35}
.stack th,.stack td{border:0;padding:0;min-width:0;max-width:100%}
.stack td.runs,.stack td.text{flex-basis:100%}
.stack td.runs .bar{flex:1;gap:.5em}.stack td.runs .bar strong{min-width:0}
.stack td .bar svg{min-width:40px;max-width:80px}.stack time small{display:none}
.tiles{grid-template-columns:repeat(auto-fit,minmax(105px,1fr));gap:.4em}
.tiles>div{padding:.3em .6em}
.stack td,.stack td>div{display:flex;gap:0 .5em;align-items:baseline;text-align:left}
.stack td>div{flex-wrap:wrap;min-width:0}.stack td.runs>div{flex:1}
.stack tbody td.number{white-space:normal}
.stack td::before{content:attr(data-label);color:var(--quiet);font-size:.82em}
.stack td:has(.none),.stack td:not([data-label])::before{display:none}
.stack .meter{width:5em;margin:0;align-self:center}.stack td.runs:has(.meter){flex-basis:auto}
h2{margin:1.2em 0 .4em}
.few tbody tr:nth-child(n+4){display:none}
.few+.more{display:block}
.lsm .keys,.lsm .head{display:none}}
"""

# Refreshes the page's main part with what the server renders; the script itself renders nothing.
SCRIPT = """
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
"""


def _source(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


# A browser may use the page's own style and script, and request the page again.
CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        f"style-src {_source(STYLE)}",
        f"script-src {_source(SCRIPT)}",
        "connect-src 'self'",
        "img-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)

ICON = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16">
<rect width="16" height="16" rx="3" fill="#20498c"/>
<path d="M3 4h4v2H3zM9 4h4v2H9zM3 7h10v2H3zM3 10h10v3H3z" fill="#fff"/></svg>
"""
