// The shell: navigation, the service's state, and the page that the address names.

import { away, refused, token } from "./api.js";
import { AwayBanner, BehindBanner, Loading, Toasts } from "./components.js";
import { CredentialRow, SignIn } from "./credential.js";
import { useObservable } from "./observable.js";
import { useResource } from "./resource.js";
import { link, route } from "./route.js";
import { choice, choose } from "./theme.js";
import { Component, html, render, useEffect, useRef, useState } from "./view.js";

/** @typedef {{name: string, title: string, icon: string, load: () => Promise<{default: (props: any) => any}>}} Page */

/** @type {{title: string, pages: Page[]}[]} */
const GROUPS = [
  {
    title: "Now",
    pages: [
      { name: "overview", title: "Overview", icon: "M2 9l3-4 3 3 4-6M1 13h12", load: () => import("./pages/overview.js") },
      { name: "loads", title: "Loads", icon: "M1 3h6M3 7h8M7 11h6", load: () => import("./pages/loads.js") },
      { name: "events", title: "Events", icon: "M1 3h2M5 3h8M1 7h2M5 7h8M1 11h2M5 11h8", load: () => import("./pages/events.js") },
    ],
  },
  {
    title: "Data",
    pages: [
      { name: "contexts", title: "Contexts", icon: "M1 4h3v6H1zM5.5 4h3v6h-3zM10 4h3v6h-3z", load: () => import("./pages/contexts.js") },
      { name: "explain", title: "Explain", icon: "M6 10.5a4.5 4.5 0 1 0 0-9 4.5 4.5 0 0 0 0 9zM9.5 9.5L13 13", load: () => import("./pages/explain.js") },
      { name: "models", title: "Models", icon: "M7 1l6 3-6 3-6-3zM1 7l6 3 6-3M1 10l6 3 6-3", load: () => import("./pages/models.js") },
      { name: "plan", title: "Plan", icon: "M2 1h10v12H2zM4.5 4h5M4.5 7h2M8 7h1.5M4.5 10h2M8 10h1.5", load: () => import("./pages/plan.js") },
    ],
  },
  {
    title: "Operate",
    pages: [
      { name: "jobs", title: "Jobs", icon: "M7 1a6 6 0 1 0 6 6M7 4v3l2 2", load: () => import("./pages/jobs.js") },
      { name: "tenant", title: "Tenants", icon: "M5 6.5a2.5 2.5 0 1 0 0-5 2.5 2.5 0 0 0 0 5zM1 13c0-5 8-5 8 0M9.5 2a2.5 2.5 0 0 1 0 4.5M11 8.5c1.5.7 2 2.5 2 4.5", load: () => import("./pages/tenants.js") },
      { name: "audit", title: "Audit", icon: "M7 1l5 2v4c0 3-2 5-5 6-3-1-5-3-5-6V3zM4.5 7l2 2 3-3.5", load: () => import("./pages/audit.js") },
    ],
  },
];
const PAGES = GROUPS.flatMap((group) => group.pages);

function Brand() {
  const config = useResource("/v1/config");
  const version = /** @type {{version?: string} | undefined} */ (config.data)?.version;
  return html`<a class="brand" href="#/overview"><img src="/console/icon.svg" alt="" width="24" height="24" /><span>Kvasir</span><span class="tag">${version ?? ""}</span></a>`;
}

/** @param {{current: string}} props */
function Side({ current }) {
  const [open, setOpen] = useState(false);
  const isAway = useObservable(away);
  const chosen = useObservable(choice);
  useEffect(() => setOpen(false), [current]);
  return html`
    <header class=${`side${open ? " open" : ""}`}>
      <div class="bar">
        <${Brand} />
        <button type="button" class="menu-button" aria-expanded=${open ? "true" : "false"} aria-controls="nav" onClick=${() => setOpen(!open)}>Menu</button>
      </div>
      <nav id="nav" class="nav" aria-label="Pages">
        ${GROUPS.map(
          (group) => html`<div key=${group.title}>
            <h2>${group.title}</h2>
            <ul>
              ${group.pages.map(
                (page) => html`<li key=${page.name}>
                  <a href=${link([page.name])} aria-current=${page.name === current ? "page" : undefined} onClick=${() => setOpen(false)}>
                    <svg width="14" height="14" viewBox="0 0 14 14" aria-hidden="true"><path d=${page.icon} fill="none" stroke="currentColor" stroke-width="1.4" stroke-linecap="round" stroke-linejoin="round" /></svg>
                    ${page.title}
                  </a>
                </li>`,
              )}
            </ul>
          </div>`,
        )}
      </nav>
      <div class="side-foot">
        <div class="row"><span>Service</span><span class="row"><span class=${`dot ${isAway ? "bad" : "good"}`} aria-hidden="true"></span>${isAway ? "away" : "answers"}</span></div>
        <div class="row">
          <label for="theme">Theme</label>
          <select id="theme" class="theme" value=${chosen} onChange=${(/** @type {Event} */ event) => choose(/** @type {any} */ (event.target).value)}>
            <option value="system">System</option>
            <option value="light">Light</option>
            <option value="dark">Dark</option>
          </select>
        </div>
        <${CredentialRow} />
      </div>
    </header>
  `;
}

/** Shows why a page is not there, instead of nothing. @extends {Component<{children?: any}, {error?: unknown}>} */
class Boundary extends Component {
  /** @param {unknown} error */
  static getDerivedStateFromError(error) {
    return { error };
  }
  /** @param {unknown} error */
  componentDidCatch(error) {
    console.error(error);
  }
  render() {
    const error = /** @type {{error?: unknown}} */ (this.state).error;
    if (error === undefined) return this.props.children;
    return html`<section class="panel"><div class="state" role="alert"><strong>This page failed</strong><p>${String(error)}</p><a class="button" href="/console/">Start again</a></div></section>`;
  }
}

/** @type {Map<string, (props: any) => any>} */
const loaded = new Map();

/** @param {{page: Page, at: import("./route.js").Route}} props */
function Outlet({ page, at }) {
  const [, turn] = useState(0);
  const [failed, setFailed] = useState("");
  const View = loaded.get(page.name);
  const where = useRef(/** @type {string | null} */ (null));
  const path = at.parts.join("/");
  useEffect(() => {
    if (View !== undefined) return undefined;
    let gone = false;
    setFailed("");
    page.load().then(
      (module) => {
        loaded.set(page.name, module.default);
        if (!gone) turn((n) => n + 1);
      },
      () => {
        if (!gone) setFailed(page.name);
      },
    );
    return () => {
      gone = true;
    };
  }, [page.name]);
  useEffect(() => {
    if (View === undefined) return;
    // Screen readers announce the new page, except the first one, to which the user did not navigate.
    if (where.current !== null && where.current !== path) {
      scrollTo(0, 0);
      /** @type {HTMLElement | null} */ (document.querySelector("main h1"))?.focus({ preventScroll: true });
    }
    where.current = path;
  }, [path, View]);
  if (failed === page.name) {
    return html`<section class="panel"><div class="state" role="alert"><strong>This page could not be loaded</strong><p>The service did not send its script.</p><button type="button" onClick=${() => location.reload()}>Load again</button></div></section>`;
  }
  if (View === undefined) return html`<h1 class="hidden" tabindex="-1">${page.title}</h1><section class="panel"><${Loading} lines=${6} /></section>`;
  return html`<${Boundary} key=${page.name}><${View} parts=${at.parts} query=${at.query} /><//>`;
}

function App() {
  const at = useObservable(route);
  const isRefused = useObservable(refused);
  const credential = useObservable(token);
  const page = PAGES.find((known) => known.name === at.parts[0]);
  return html`
    <a class="skip" href="#content" onClick=${skip}>Skip to the page</a>
    <${Side} current=${page?.name ?? ""} />
    <main class="page" id="content" tabindex="-1">
      <${AwayBanner} />
      <${BehindBanner} />
      ${isRefused
        ? html`<${SignIn} key=${credential} />`
        : page === undefined
          ? html`<section class="panel"><div class="state"><h1 tabindex="-1">There is no such page</h1><p>The address may belong to another version.</p><a class="button" href="#/overview">Overview</a></div></section>`
          : html`<${Outlet} page=${page} at=${at} />`}
    </main>
    <${Toasts} />
  `;
}

/** The fragment is the page's address: the link moves the focus only. @param {Event} event */
function skip(event) {
  event.preventDefault();
  document.getElementById("content")?.focus();
}

const root = document.getElementById("console");
if (root !== null) {
  root.replaceChildren();
  render(html`<${App} />`, root);
}
