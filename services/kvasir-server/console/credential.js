// The credential: asked for where the service refuses, changed and forgotten in a dialog.

import { refused, setToken, token } from "./api.js";
import { useObservable } from "./observable.js";
import { html, useEffect, useRef, useState } from "./view.js";

/** A longer one is not a token of the service. */
const TOKEN_CHARACTERS_MAX = 16_384;

/** @param {{done?: () => void, cancel?: (() => void) | undefined}} props */
function CredentialForm({ done, cancel }) {
  const [problem, setProblem] = useState("");
  const field = useRef(/** @type {HTMLInputElement | null} */ (null));
  /** @param {Event} event */
  const submit = (event) => {
    event.preventDefault();
    const value = (field.current?.value ?? "").trim();
    if (value === "" || value.length > TOKEN_CHARACTERS_MAX || /[^\x21-\x7e]/.test(value)) {
      setProblem("A token is one word of printable characters, without spaces.");
      field.current?.focus();
      return;
    }
    setToken(value);
    done?.();
  };
  return html`
    <form onSubmit=${submit} autocomplete="off">
      <h2 id="credential-title">Credential</h2>
      <p class="muted">A bearer token of the tenants file (<code>kvasir token</code>) or a JSON Web Token. It stays in this tab and is gone when the tab is closed.</p>
      <div class="field">
        <label for="credential-token">Token</label>
        <input id="credential-token" ref=${field} type="password" autocomplete="off" spellcheck="false" aria-describedby=${problem === "" ? undefined : "credential-problem"} />
        ${problem === "" ? null : html`<small id="credential-problem" class="bad-text" role="alert">${problem}</small>`}
      </div>
      <div class="actions">
        ${cancel === undefined ? null : html`<button type="button" onClick=${cancel}>Cancel</button>`}
        <button type="submit" class="primary">Use this token</button>
      </div>
    </form>
  `;
}

/** In place of a page whose credential was refused. */
export function SignIn() {
  const given = useObservable(token) !== "";
  return html`
    <section class="panel" aria-labelledby="sign-in">
      <div class="body">
        <h1 id="sign-in" tabindex="-1">${given ? "The service refused this credential" : "The service asks for a credential"}</h1>
        <p class="muted">${given ? "It is not known, was revoked, or has expired." : "It decides which tenant's data and which pages you see."}</p>
        <div class="sign-in"><${CredentialForm} /></div>
      </div>
    </section>
  `;
}

/** @param {{open: boolean, close: () => void}} props */
export function CredentialDialog({ open, close }) {
  const dialog = useRef(/** @type {HTMLDialogElement | null} */ (null));
  useEffect(() => {
    if (open && dialog.current?.open === false) dialog.current.showModal();
    if (!open && dialog.current?.open === true) dialog.current.close();
  }, [open]);
  return html`<dialog ref=${dialog} onClose=${close} aria-labelledby="credential-title">${open ? html`<${CredentialForm} done=${close} cancel=${close} />` : null}</dialog>`;
}

/** What the credential is, and its buttons. */
export function CredentialRow() {
  const given = useObservable(token) !== "";
  const isRefused = useObservable(refused);
  const [open, setOpen] = useState(false);
  return html`
    <div class="row">
      <span>${given ? (isRefused ? "Token refused" : "Token") : "No token"}</span>
      <span class="row-tight">
        ${given ? html`<button type="button" class="small" onClick=${() => setToken("")}>Forget</button>` : null}
        <button type="button" class="small" onClick=${() => setOpen(true)}>${given ? "Change" : "Set token"}</button>
      </span>
    </div>
    <${CredentialDialog} open=${open && !isRefused} close=${() => setOpen(false)} />
  `;
}
