// Light, dark, or as the system has it. theme-early.js does the same before the first paint.

import { Observable } from "./observable.js";

/** @typedef {"system" | "light" | "dark"} Choice */

const KEY = "kvasir.theme";
const system = matchMedia("(prefers-color-scheme: dark)");

/** @returns {Choice} */
function stored() {
  try {
    const value = localStorage.getItem(KEY);
    return value === "light" || value === "dark" ? value : "system";
  } catch {
    return "system";
  }
}

/** @param {Choice} choice @returns {"light" | "dark"} */
function resolved(choice) {
  if (choice !== "system") return choice;
  return system.matches ? "dark" : "light";
}

export const choice = new Observable(stored());
/** The theme in effect: charts redraw when it changes. */
export const theme = new Observable(resolved(choice.value));

function apply() {
  const shown = resolved(choice.value);
  document.documentElement.dataset.theme = shown;
  theme.set(shown);
}
system.addEventListener("change", apply);
apply();

/** @param {Choice} value */
export function choose(value) {
  choice.set(value);
  try {
    if (value === "system") localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, value);
  } catch {
    // Storage is off: the choice lasts as long as the page.
  }
  apply();
}

/** @param {string} name of a custom property */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}
